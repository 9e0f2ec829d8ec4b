/* Gives torch's allocator addresses of one range, front to back; and clears the stack, so that captures are alike.
 *
 * For captures (`take`), every piece of the range is mapped to the same memory. For work that runs (`take_memory`), the range
 * begins with memory that is lent, and what is beyond it gets memory when it is taken.
 *
 * Torch calls these functions while it holds the lock of its allocator. A Python function would wait there for the
 * interpreter's lock, whose holder may wait for the allocator's: that is why this is C.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef int (*map_function)(uint64_t address, size_t size, size_t offset, uint64_t memory, unsigned long long flags);
typedef int (*access_function)(uint64_t address, size_t size, const void *access, size_t count);
typedef int (*mode_function)(int *mode);
typedef int (*create_function)(uint64_t *memory, size_t size, const void *properties, unsigned long long flags);
typedef int (*release_function)(uint64_t memory);

static struct {
    uint64_t next, end;  /* what is left of the range */
    size_t sizes[2];     /* of the two pieces of memory, a large one and a small one; a mapping is of a whole piece */
    uint64_t pieces[2];
    map_function map;
    access_function allow;
    const void *access;
    mode_function exchange; /* of how strict this thread is while it captures */
    uint32_t chance;
} range;

enum { MOST_GAPS = 4 };

void use_range(uint64_t start, uint64_t end, size_t large, uint64_t large_piece, size_t small, uint64_t small_piece,
               map_function map, access_function allow, const void *access, mode_function exchange, uint32_t seed)
{
    range.next = start;
    range.end = end;
    range.sizes[0] = large;
    range.pieces[0] = large_piece;
    range.sizes[1] = small;
    range.pieces[1] = small_piece;
    range.map = map;
    range.allow = allow;
    range.access = access;
    range.exchange = exchange;
    range.chance = seed;
}

/* The first address that nobody has: what lies before it is mapped. */
uint64_t range_next(void) { return range.next; }

static int map_all(uint64_t start, size_t size)
{
    while (size > 0) {
        int which = size < range.sizes[0];
        /* `next` goes on piece by piece: if one fails, all that is mapped lies before it, and is unmapped with the rest. */
        if (range.map(range.next, range.sizes[which], 0, range.pieces[which], 0) != 0)
            return 1;
        range.next += range.sizes[which];
        size -= range.sizes[which];
    }
    return range.allow(start, (size_t)(range.next - start), range.access, 1);
}

void clear_stack(void);

/* Small pieces that nobody gets. Their number differs from range to range: so segments lie at other distances in each, and
 * what moved from one range to another shows by how far in which segment it was. */
static size_t gap(void)
{
    range.chance = range.chance * 1664525u + 1013904223u;
    /* The low bits of such a generator repeat soon. */
    return (range.chance >> 16) % MOST_GAPS * range.sizes[1];
}

__attribute__((noinline)) static void *next_addresses(size_t size)
{
    uint64_t start = range.next;
    size_t before = gap();
    int mode = 2; /* relaxed: to map memory is no work for a graph */
    int failed;
    if (size + before > range.end - start || size % range.sizes[1] != 0)
        return NULL;
    range.exchange(&mode);
    failed = map_all(start, before + size);
    range.exchange(&mode); /* back to what the first exchange has left in `mode` */
    return failed ? NULL : (void *)(uintptr_t)(start + before);
}

/* `size` bytes of addresses; NULL if there are none left, or if it is no multiple of the small piece. An operator calls this
 * before it puts its kernel's parameters together: what is random in here is not to be left where they will lie. */
void *take(size_t size, int device, void *stream)
{
    void *taken = next_addresses(size);
    (void)device;
    (void)stream;
    clear_stack();
    return taken;
}

/* The whole range is given back at once, by whoever has it. */
void give_back(void *address, size_t size, int device, void *stream)
{
    (void)address;
    (void)size;
    (void)device;
    (void)stream;
}

static struct {
    uint64_t next, mapped, end; /* what is left of the range, and up to where there is memory */
    create_function create;
    const void *properties;
    map_function map;
    access_function allow;
    const void *access;
    release_function release;
} lent;

void use_memory(uint64_t start, uint64_t mapped, uint64_t end, create_function create, const void *properties,
                map_function map, access_function allow, const void *access, release_function release)
{
    lent.next = start;
    lent.mapped = mapped;
    lent.end = end;
    lent.create = create;
    lent.properties = properties;
    lent.map = map;
    lent.allow = allow;
    lent.access = access;
    lent.release = release;
}

/* The first address behind which there is no memory. */
uint64_t memory_end(void) { return lent.mapped; }

static int add(size_t size)
{
    uint64_t start = lent.mapped, memory;
    int failed;
    if (lent.create(&memory, size, lent.properties, 0) != 0)
        return 1;
    failed = lent.map(start, size, 0, memory, 0);
    lent.release(memory); /* it stays as long as it is mapped */
    if (failed)
        return 1;
    lent.mapped += size;
    if (lent.allow(start, size, lent.access, 1) == 0)
        return 0;
    lent.end = lent.next; /* mapped, and nobody may use it */
    return 1;
}

/* `size` bytes with memory behind them; NULL if there is no more. */
void *take_memory(size_t size, int device, void *stream)
{
    uint64_t start = lent.next;
    (void)device;
    (void)stream;
    if (size > lent.end - start)
        return NULL;
    if (start + size > lent.mapped && add((size_t)(start + size - lent.mapped)) != 0)
        return NULL;
    lent.next = start + size;
    return (void *)(uintptr_t)start;
}

enum { CLEARED = 1 << 16 };

/* Leaves zeros where the frames of what is called next will lie. A kernel's parameters are put together there, with parts that
 * nobody writes to: what happens to be there is captured, and would have to be told from addresses that are meant. */
__attribute__((noinline)) void clear_stack(void)
{
    char below[CLEARED];
    memset(below, 0, sizeof below);
    __asm__ volatile("" : : "r"(below) : "memory"); /* or the compiler would leave it out: nobody reads it */
}
