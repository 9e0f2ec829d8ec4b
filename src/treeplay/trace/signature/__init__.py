"""From what a run did to the signature of its recording: inputs, results, slots and conditions."""
