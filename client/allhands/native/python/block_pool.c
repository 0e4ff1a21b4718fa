#include "python/block_pool.h"

#include <stdlib.h>

#include "python/arrays.h"

enum { SMALLEST = 14, LARGEST = 22, CLASSES = LARGEST - SMALLEST + 1 }; /* powers of two */
#define KEPT_BYTES (8 << 20) /* of free blocks together */

/* Before the bytes of a block. */
typedef struct Block {
    _Alignas(64) struct Block *next;
    int size_class;
} Block;

static Block *free_blocks[CLASSES];
static size_t kept_bytes;
static const char *const capsule_name = "allhands.block";

static size_t class_bytes(int size_class) { return (size_t)1 << (size_class + SMALLEST); }

/* The class of blocks that so many bytes fit in; -1: none. */
static int class_of(size_t nbytes) {
    if (nbytes < class_bytes(0)) return -1;
    for (int at = 0; at < CLASSES; at++)
        if (nbytes <= class_bytes(at)) return at;
    return -1;
}

static Block *take_block(int size_class) {
    Block *block = free_blocks[size_class];
    if (block != NULL) {
        free_blocks[size_class] = block->next;
        kept_bytes -= class_bytes(size_class);
    } else if ((block = aligned_alloc(64, sizeof *block + class_bytes(size_class))) != NULL)
        block->size_class = size_class;
    return block;
}

static void return_block(Block *block) {
    if (kept_bytes + class_bytes(block->size_class) > KEPT_BYTES) {
        free(block);
        return;
    }
    kept_bytes += class_bytes(block->size_class);
    block->next = free_blocks[block->size_class];
    free_blocks[block->size_class] = block;
}

static void release_block(PyObject *capsule) {
    return_block(PyCapsule_GetPointer(capsule, capsule_name));
}

PyObject *pool_new_array(size_t nbytes) {
    npy_intp length = (npy_intp)nbytes;
    int size_class = class_of(nbytes);
    if (size_class < 0) return PyArray_SimpleNew(1, &length, NPY_UINT8);
    Block *block = take_block(size_class);
    if (block == NULL) return PyErr_NoMemory();
    PyObject *owner = PyCapsule_New(block, capsule_name, release_block);
    if (owner == NULL) {
        return_block(block);
        return NULL;
    }
    PyObject *array = array_over(owner, block + 1, 1, &length, PyArray_DescrFromType(NPY_UINT8));
    Py_DECREF(owner);
    return array;
}

PyObject *allocate_bytes(PyObject *module, PyObject *nbytes) {
    (void)module;
    size_t wanted = PyLong_AsSize_t(nbytes);
    if (PyErr_Occurred()) return NULL;
    return wanted > PY_SSIZE_T_MAX ? PyErr_NoMemory() : pool_new_array(wanted);
}
