/* Whether words of memory are what they were: one call for all guards that are a word of a Python object each.

   The function's `self` is a tuple: a plan, what answers if the words are not the same, and the objects that the words are of.
   A plan is the data of a `bytes` object: its header, and then pairs of an address and the word that was there. First versions
   of dictionaries, of which the lowest bits say who watches; then other words, among them where the elements of each list are;
   then those elements, which may be looked at only where that is as it was. The look calls no Python, so nothing changes
   meanwhile. */

#include <stdint.h>

/* Of the interpreter that loads this. */
extern void *PyBool_FromLong(long value);
extern char *PyBytes_AsString(void *bytes);
extern void *PyObject_CallNoArgs(void *function);
extern void *PyTuple_GetItem(void *tuple, intptr_t at);

typedef struct {
    const volatile uint64_t *at;
    uint64_t was;
} word;

typedef struct {
    uint64_t watchers; /* how many bits of a version say who watches */
    uint64_t versions, words, elements;
    word all[];
} plan;

static uint64_t differing(const word *words, uint64_t count)
{
    uint64_t bits = 0; /* without a branch: the processor waits for many words at once */
    for (uint64_t i = 0; i < count; i++)
        bits |= *words[i].at ^ words[i].was;
    return bits;
}

/* The function of a warm call: True where every word is what it was. */
void *are_the_same(void *self, void *nothing)
{
    const plan *of = (const plan *)PyBytes_AsString(PyTuple_GetItem(self, 0));
    const word *others = of->all + of->versions;
    (void)nothing;
    if (!(differing(of->all, of->versions) >> of->watchers) && !differing(others, of->words)
        && !differing(others + of->words, of->elements))
        return PyBool_FromLong(1);
    return PyObject_CallNoArgs(PyTuple_GetItem(self, 1));
}
