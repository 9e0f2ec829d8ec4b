"""The walk from what a run read to the guards over it."""
