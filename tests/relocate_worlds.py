"""Made-up captures whose sites are known: tensors, outputs, scratch blocks and kernels at random.

World(seed) places everything anew for each capture; `captures()` renders them, `planted` says what must be found.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from treeplay.relocate import Site
from treeplay.values.nodes import Allocation, CaptureNotes, GraphNode, Kernel, Memcpy, Memset, Placed, word_bytes

DEVICE = (0x7F00_0000_0000, 0x7F80_0000_0000)
HOST = 0x5500_0000_0000
CAPTURES = 3

Render = Callable[[int], bytes]  # the bytes of a piece of a parameter in capture k


@dataclass(slots=True)
class Thing:
    """Something with an address in each capture."""

    role: str
    index: int
    addresses: list[int]
    nbytes: int

    def at(self, capture: int) -> int:
        return self.addresses[capture]


class World:
    """Random captures. All numbers come from `seed`; counts are given so that failures shrink."""

    def __init__(self, seed: int, *, tensors: int = 4, scratch: int = 5, outputs: int = 2, nodes: int = 6) -> None:
        self.chance = random.Random(seed)
        self.planted: dict[tuple[str, int], set[Site]] = defaultdict(set)
        self.tensors = [self._tensor(index) for index in range(tensors)]
        self.blocks = [self._block(index) for index in range(scratch + outputs)]
        self._lay_out_blocks()
        chosen = sorted(self.chance.sample(range(len(self.blocks)), outputs))
        self.outputs = [
            Thing("output", number, self.blocks[at].addresses, self.blocks[at].nbytes)
            for number, at in enumerate(chosen)
        ]
        self.scratch = [block for at, block in enumerate(self.blocks) if at not in chosen]
        self.weights = [Thing("weight", 0, [self._address()] * CAPTURES, 1 << 20)]
        self.nodes: list[Callable[[int], GraphNode]] = []
        for _ in range(nodes):
            self.add_random_node()

    def captures(self) -> list[CaptureNotes]:
        """The captures as they would have been read."""
        return [
            CaptureNotes(
                tuple(node(number) for node in self.nodes),
                tuple(Placed(thing.index, thing.at(number), thing.nbytes) for thing in self.tensors),
                tuple(Placed(thing.index, thing.at(number), thing.nbytes) for thing in self.outputs),
                tuple(Allocation(block.at(number), block.nbytes) for block in self.blocks),
            )
            for number in range(CAPTURES)
        ]

    def add_random_node(self) -> None:
        """A kernel of either kind, a memcpy or a memset, with random pointers in it."""
        kind = self.chance.choice(["plain", "plain", "packed", "memcpy", "memset"])
        if kind == "memcpy":
            self.add_memcpy(self._anything(), self._anything())
        elif kind == "memset":
            self.add_memset(self._anything())
        else:
            count = self.chance.randint(1, 6)
            self.add_kernel([self._random_piece() for _ in range(count)], is_packed=kind == "packed")

    def add_kernel(self, pieces: list[tuple[Render, Thing | None]], *, is_packed: bool = False) -> int:
        """A kernel whose parameters are the pieces; a piece that is a pointer is planted. The node's index."""
        node = len(self.nodes)
        offset = 0
        for number, (render, thing) in enumerate(pieces):
            if thing is not None:
                where = (0, offset) if is_packed else (number, 0)
                self._plant(thing, node, *where, int.from_bytes(render(0), "little"))
            offset += len(render(0))

        def at(capture: int) -> GraphNode:
            params = tuple(render(capture) for render, _ in pieces)
            params = (b"".join(params),) if is_packed else params
            return Kernel(f"k{node}", node, (1, 1, 1), (32, 1, 1), 0, params, is_packed)

        self.nodes.append(at)
        return node

    def add_memcpy(self, source: Thing, destination: Thing) -> int:
        """A copy from one thing to another."""
        node = len(self.nodes)
        self._plant(source, node, 0, 0, source.at(0))
        self._plant(destination, node, 1, 0, destination.at(0))
        self.nodes.append(lambda k: Memcpy(source.at(k), destination.at(k), "device", "device", (0, 64, 1, 1)))
        return node

    def add_memset(self, thing: Thing) -> int:
        """A fill of a thing."""
        node = len(self.nodes)
        self._plant(thing, node, 0, 0, thing.at(0))
        self.nodes.append(lambda k: Memset(thing.at(k), 0, 4, 64, 1, 0))
        return node

    def add_words(self, values: Callable[[int], int], *, is_packed: bool = True, nbytes: int = 8) -> int:
        """A kernel with a word of one's own making."""
        return self.add_kernel([(lambda k: values(k).to_bytes(nbytes, "little"), None)], is_packed=is_packed)

    def pointer(self, thing: Thing, offset: int = 0) -> tuple[Render, Thing]:
        """A pointer to a thing."""
        return (lambda k: word_bytes(thing.at(k) + offset)), thing

    def noise(self) -> tuple[Render, None]:
        """A word of padding: host pointers, small numbers, perhaps one stale device address."""
        values = [self._garbage() for _ in range(CAPTURES)]
        if self.chance.random() < 0.2:  # a stale device address
            values[self.chance.randrange(CAPTURES)] = self._anything().at(0)
        return (lambda k: word_bytes(values[k])), None

    def constant(self, nbytes: int) -> tuple[Render, None]:
        """A number that is the same in each capture."""
        data = self.chance.randbytes(nbytes)
        return (lambda k: data), None

    def _random_piece(self) -> tuple[Render, Thing | None]:
        kind = self.chance.choice(["pointer"] * 4 + ["constant8", "constant4x2", "struct", "struct"])
        if kind == "pointer":
            thing = self._anything()
            return self.pointer(thing, self.chance.randrange(0, thing.nbytes, 4))
        if kind == "struct":  # padding lies in structures, beside other members
            first, second = self.constant(8)[0], self.noise()[0]
            return (lambda k: first(k) + second(k)), None
        return self.constant(8)

    def _plant(self, thing: Thing, node: int, buffer: int, offset: int, value: int) -> None:
        if thing.role in ("tensor", "output"):
            self.planted[thing.role, thing.index].add(Site(node, buffer, offset, value - thing.at(0)))

    def _anything(self) -> Thing:
        return self.chance.choice([*self.tensors, *self.outputs, *self.scratch, *self.weights])

    def _tensor(self, index: int) -> Thing:
        nbytes = self.chance.randrange(4, 1 << 16, 4)
        residue = self.chance.choice([0, 0, 16, 64, 4])
        return Thing("tensor", index, [self._address() + residue for _ in range(CAPTURES)], nbytes)

    def _block(self, index: int) -> Thing:
        return Thing("scratch", index, [0] * CAPTURES, self.chance.randrange(1, 1 << 14))

    def _lay_out_blocks(self) -> None:
        """Blocks one after another, in another order in each capture."""
        for capture in range(CAPTURES):
            address = self._address()
            for block in self.chance.sample(self.blocks, len(self.blocks)):
                block.addresses[capture] = address
                address += -(-block.nbytes // 512) * 512

    def _address(self) -> int:
        return self.chance.randrange(DEVICE[0], DEVICE[1] - (1 << 30), 512)

    def _garbage(self) -> int:
        return self.chance.choice([self.chance.randrange(1 << 20), HOST + self.chance.randrange(1 << 32)])


@dataclass(slots=True)
class _Heap:
    """An allocator that takes the smallest free stretch that fits, as torch's does."""

    free: list[tuple[int, int]]  # size, start

    def take(self, nbytes: int) -> int:
        size = -(-nbytes // 512) * 512
        found, start = min(each for each in self.free if each[0] >= size)
        self.free.remove((found, start))
        if found > size:
            self.free.append((found - size, start + size))
        return start

    def give(self, start: int, nbytes: int) -> None:
        size = -(-nbytes // 512) * 512
        self.free.append((size, start))


class LivingWorld(World):
    """Blocks come and go while nodes are made, so that later ones lie where earlier ones were. Outputs stay.

    `is_alike`: the captures differ by one distance alone, so that what shared memory also moved alike.
    """

    def __init__(self, seed: int, *, steps: int = 20, is_alike: bool = False) -> None:
        super().__init__(seed, tensors=2, scratch=0, outputs=0, nodes=0)
        self.births: list[int] = []
        heaps = self._heaps(is_alike)
        alive: list[Thing] = []
        for _ in range(steps):
            kind = self.chance.choice(["alloc", "alloc", "free", "node", "node"])
            if kind == "alloc":
                block = self._block(len(self.blocks))
                block.nbytes = self.chance.choice([100, 512, 1000, 2048, 5000])
                block.addresses = [heap.take(block.nbytes) for heap in heaps]
                self.births.append(len(self.nodes))
                self.blocks.append(block)
                alive.append(block)
            elif kind == "free" and alive:
                block = alive.pop(self.chance.randrange(len(alive)))
                for heap, address in zip(heaps, block.addresses, strict=True):
                    heap.give(address, block.nbytes)
            elif kind == "node":
                self._node_over([*alive, *self.tensors])
        kept = [block for block in self.blocks if block in alive]
        self.outputs = [Thing("output", number, block.addresses, block.nbytes) for number, block in enumerate(kept)]
        self.output_births = [self.births[block.index] for block in kept]
        self.owners = {id(block): output for block, output in zip(kept, self.outputs, strict=True)}
        self._plant_all()

    def captures(self, *, knows_births: bool = True) -> list[CaptureNotes]:
        return [
            replace(
                capture,
                outputs=tuple(
                    replace(place, birth=birth if knows_births else None)
                    for place, birth in zip(capture.outputs, self.output_births, strict=True)
                ),
            )
            for capture in super().captures()
        ]

    def _heaps(self, is_alike: bool) -> list[_Heap]:
        heaps = []
        for _ in range(CAPTURES):
            start = self._address()
            holes = (
                [] if is_alike else [(512 * self.chance.randint(1, 8), start + (hole << 20)) for hole in range(1, 6)]
            )
            heaps.append(_Heap([(1 << 19, start), *holes]))
        return heaps

    def _node_over(self, things: list[Thing]) -> None:
        chosen = [self.chance.choice(things) for _ in range(self.chance.randint(1, 3))]
        offsets = [self.chance.randrange(0, thing.nbytes, 4) for thing in chosen]
        self.uses = getattr(self, "uses", [])
        self.uses.append(list(zip(chosen, offsets, strict=True)))
        node = len(self.nodes)

        def at(capture: int) -> GraphNode:
            params = tuple(word_bytes(thing.at(capture) + offset) for thing, offset in self.uses[node])
            return Kernel(f"k{node}", node, (1, 1, 1), (32, 1, 1), 0, params)

        self.nodes.append(at)

    def _plant_all(self) -> None:
        for node, uses in enumerate(getattr(self, "uses", [])):
            for buffer, (thing, offset) in enumerate(uses):
                owner = self.owners.get(id(thing), thing)
                self._plant(owner, node, buffer, 0, thing.at(0) + offset)
