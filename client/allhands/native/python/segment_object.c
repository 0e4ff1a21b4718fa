#define _GNU_SOURCE
#include "python/segment_object.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "p2p/p2p_ring.h"

/* A segment begins with this head. Its owner writes it; everybody reads. A peer is trusted to be
 * the process that the coordinator named (the nonce proves it), not to be sound: what is read here
 * is checked by those who use it. */
#define NONCE_BYTES 16
#define LARGEST_DIRECTORY 4000
/* Of Linux 5.14; older ones refuse them. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

typedef struct {
    _Atomic uint64_t group;
    uint64_t offset; /* of the group's area; 0: the owner does without */
    uint64_t terms;  /* on which all ranks of the group must agree */
    _Atomic uint64_t closed;
} Entry;

typedef struct {
    unsigned char nonce[NONCE_BYTES];
    _Atomic uint32_t entries; /* a futex: whoever waits for an entry sleeps on it */
    Entry directory[LARGEST_DIRECTORY];
} Head;

PyTypeObject *Segment_Type;
PyTypeObject *Block_Type;

static Head *head(SegmentObject *self) { return (Head *)self->base; }

static Entry *find(SegmentObject *self, uint64_t group) {
    uint32_t count = atomic_load_explicit(&head(self)->entries, memory_order_acquire);
    if (count > LARGEST_DIRECTORY) count = LARGEST_DIRECTORY;
    for (uint32_t at = count; at-- > 0;) /* the newest first */
        if (atomic_load_explicit(&head(self)->directory[at].group, memory_order_relaxed) == group)
            return &head(self)->directory[at];
    return NULL;
}

static bool is_open(SegmentObject *self) {
    if (self->base != NULL) return true;
    PyErr_SetString(PyExc_ValueError, "the segment is closed");
    return false;
}

static PyObject *made(PyTypeObject *type, int fd, size_t nbytes, bool owned) {
    void *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        close(fd);
        return NULL;
    }
    /* A core dump of terabytes of nothing helps nobody. */
    madvise(base, nbytes, MADV_DONTDUMP);
    SegmentObject *self = (SegmentObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        munmap(base, nbytes);
        close(fd);
        return NULL;
    }
    self->base = base;
    self->nbytes = nbytes;
    self->fd = owned ? fd : -1;
    if (!owned) close(fd);
    return (PyObject *)self;
}

static PyObject *segment_create(PyObject *type, PyObject *args) {
    const char *nonce;
    Py_ssize_t length, nbytes;
    if (!PyArg_ParseTuple(args, "ny#", &nbytes, &nonce, &length)) return NULL;
    if (length != NONCE_BYTES || nbytes < (Py_ssize_t)sizeof(Head))
        return PyErr_Format(PyExc_ValueError, "a segment has a nonce of %d bytes and at least %zu",
                            NONCE_BYTES, sizeof(Head));
    int fd = memfd_create("allhands", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return PyErr_SetFromErrno(PyExc_OSError);
    if (ftruncate(fd, nbytes) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        close(fd);
        return NULL;
    }
    PyObject *self = made((PyTypeObject *)type, fd, (size_t)nbytes, true);
    if (self != NULL) memcpy(head((SegmentObject *)self)->nonce, nonce, NONCE_BYTES);
    return self;
}

static PyObject *segment_open(PyObject *type, PyObject *args) {
    const char *path, *nonce;
    Py_ssize_t length, nbytes;
    if (!PyArg_ParseTuple(args, "sny#", &path, &nbytes, &nonce, &length)) return NULL;
    /* Looked at before it is opened: whoever announced it may be somebody else, with a device. */
    int place = open(path, O_PATH | O_CLOEXEC);
    if (place < 0) return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    struct stat found;
    if (fstat(place, &found) < 0 || !S_ISREG(found.st_mode) || found.st_size != nbytes) {
        close(place);
        return PyErr_Format(PyExc_OSError, "%s is not the memory that was announced", path);
    }
    if (found.st_uid != geteuid()) {
        close(place);
        return PyErr_Format(PyExc_OSError, "%s belongs to uid %u, and this process to uid %u", path,
                            (unsigned)found.st_uid, (unsigned)geteuid());
    }
    char itself[32];
    snprintf(itself, sizeof itself, "/proc/self/fd/%d", place);
    int fd = open(itself, O_RDWR | O_CLOEXEC);
    close(place);
    if (fd < 0) return PyErr_SetFromErrnoWithFilename(PyExc_OSError, path);
    /* Memory that its owner can cut off would end this process by SIGBUS. */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) {
        close(fd);
        return PyErr_Format(PyExc_OSError, "%s can be cut off by its owner", path);
    }
    PyObject *self = made((PyTypeObject *)type, fd, (size_t)nbytes, false);
    if (self == NULL) return NULL;
    if (length != NONCE_BYTES || memcmp(head((SegmentObject *)self)->nonce, nonce, NONCE_BYTES)) {
        Py_DECREF(self);
        return PyErr_Format(PyExc_OSError, "%s is another process's memory", path);
    }
    return self;
}

static PyObject *segment_publish(SegmentObject *self, PyObject *args) {
    unsigned long long group, offset, terms;
    if (!PyArg_ParseTuple(args, "KKK", &group, &offset, &terms) || !is_open(self)) return NULL;
    uint32_t count = atomic_load_explicit(&head(self)->entries, memory_order_relaxed);
    if (count >= LARGEST_DIRECTORY) Py_RETURN_FALSE;
    Entry *entry = &head(self)->directory[count];
    atomic_store_explicit(&entry->group, group, memory_order_relaxed);
    entry->offset = offset;
    entry->terms = terms;
    atomic_store_explicit(&head(self)->entries, count + 1, memory_order_release);
    syscall(SYS_futex, &head(self)->entries, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    Py_RETURN_TRUE;
}

/* None: not yet; (0, 0): never, the directory is full. */
static PyObject *segment_find(SegmentObject *self, PyObject *args) {
    unsigned long long group;
    if (!PyArg_ParseTuple(args, "K", &group) || !is_open(self)) return NULL;
    Entry *entry = find(self, group);
    if (entry != NULL)
        return Py_BuildValue("KK", (unsigned long long)entry->offset,
                             (unsigned long long)entry->terms);
    if (atomic_load_explicit(&head(self)->entries, memory_order_acquire) >= LARGEST_DIRECTORY)
        return Py_BuildValue("KK", 0ULL, 0ULL);
    Py_RETURN_NONE;
}

static PyObject *segment_await(SegmentObject *self, PyObject *args) {
    unsigned long long group;
    double seconds;
    if (!PyArg_ParseTuple(args, "Kd", &group, &seconds) || !is_open(self)) return NULL;
    uint32_t seen = atomic_load_explicit(&head(self)->entries, memory_order_acquire);
    if (find(self, group) != NULL || seen >= LARGEST_DIRECTORY) Py_RETURN_NONE;
    if (seconds < 0) seconds = 0;
    struct timespec span = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    Py_BEGIN_ALLOW_THREADS
    syscall(SYS_futex, &head(self)->entries, FUTEX_WAIT, seen, &span, NULL, 0);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *segment_retire(SegmentObject *self, PyObject *args) {
    unsigned long long group;
    if (!PyArg_ParseTuple(args, "K", &group) || !is_open(self)) return NULL;
    Entry *entry = find(self, group);
    if (entry != NULL) atomic_store(&entry->closed, 1);
    Py_RETURN_NONE;
}

static PyObject *segment_is_retired(SegmentObject *self, PyObject *args) {
    unsigned long long group;
    if (!PyArg_ParseTuple(args, "K", &group) || !is_open(self)) return NULL;
    Entry *entry = find(self, group);
    return PyBool_FromLong(entry != NULL && atomic_load(&entry->closed) != 0);
}

bool segment_unshare(SegmentObject *self, void *from, size_t nbytes) {
    void *grown =
        PyMem_Realloc(self->unshared, ((size_t)self->unshared_count + 1) * sizeof *self->unshared);
    if (grown == NULL) return false;
    self->unshared = grown;
    self->unshared[self->unshared_count].from = from;
    self->unshared[self->unshared_count].to = (char *)from + nbytes;
    self->unshared_count++;
    return true;
}

bool segment_is_unshared(const SegmentObject *self, int first, const void *at, size_t nbytes) {
    const char *from = at, *to = from + nbytes;
    for (int i = first; i < self->unshared_count; i++)
        if (from < self->unshared[i].to && to > self->unshared[i].from) return true;
    return false;
}

/* Whether whole pages lie behind the head; else an exception is set. */
static bool is_part(const SegmentObject *self, Py_ssize_t offset, Py_ssize_t nbytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool is_inside = offset >= (Py_ssize_t)sizeof(Head) && nbytes >= 0 &&
                     (size_t)offset % page == 0 && (size_t)offset <= self->nbytes &&
                     (size_t)nbytes <= self->nbytes - (size_t)offset;
    if (!is_inside) PyErr_SetString(PyExc_ValueError, "no such part of the segment");
    return is_inside;
}

/* Pages that another process has by now are only mapped, which takes an eighth of the time. */
static PyObject *segment_prefault(SegmentObject *self, PyObject *args) {
    Py_ssize_t offset, nbytes;
    if (!PyArg_ParseTuple(args, "nn", &offset, &nbytes) || !is_open(self) ||
        !is_part(self, offset, nbytes))
        return NULL;
    int advice = self->fd >= 0 ? MADV_POPULATE_WRITE : MADV_POPULATE_READ, failed;
    Py_BEGIN_ALLOW_THREADS
    failed = madvise(self->base + offset, (size_t)nbytes, advice);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(failed == 0);
}

/* Give pages back; they read as zeros afterwards. */
static PyObject *segment_clear(SegmentObject *self, PyObject *args) {
    Py_ssize_t offset, nbytes;
    if (!PyArg_ParseTuple(args, "nn", &offset, &nbytes) || !is_open(self)) return NULL;
    if (!is_part(self, offset, nbytes)) return NULL;
    if (segment_is_unshared(self, 0, self->base + offset, (size_t)nbytes)) Py_RETURN_FALSE;
    if (madvise(self->base + offset, (size_t)nbytes, MADV_REMOVE) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_TRUE;
}

static PyObject *segment_fd(SegmentObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(self->fd);
}

static PyObject *segment_nbytes(SegmentObject *self, void *unused) {
    (void)unused;
    return PyLong_FromSize_t(self->nbytes);
}

static void segment_dealloc(SegmentObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(self->unshared);
    if (self->base != NULL) munmap(self->base, self->nbytes);
    if (self->fd >= 0) close(self->fd);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef segment_methods[] = {
    {"create", segment_create, METH_VARARGS | METH_CLASS,
     "create(nbytes, nonce)\n--\n\nMake shared memory of this process: sparse, anonymous, zero."},
    {"open", segment_open, METH_VARARGS | METH_CLASS,
     "open(path, nbytes, nonce)\n--\n\nMap another process's; OSError if it is not that."},
    {"publish", (PyCFunction)segment_publish, METH_VARARGS,
     "publish(group, offset, terms)\n--\n\nEnter a group's area; False: the directory is full."},
    {"find", (PyCFunction)segment_find, METH_VARARGS,
     "find(group)\n--\n\nReturn (offset, terms), offset 0 if its owner refuses; None: not yet."},
    {"await_entry", (PyCFunction)segment_await, METH_VARARGS,
     "await_entry(group, seconds)\n--\n\nSleep until an entry comes, or for some time."},
    {"retire", (PyCFunction)segment_retire, METH_VARARGS,
     "retire(group)\n--\n\nSay that the owner will not use the group's areas any more."},
    {"is_retired", (PyCFunction)segment_is_retired, METH_VARARGS, "is_retired(group)\n--\n\n"},
    {"clear", (PyCFunction)segment_clear, METH_VARARGS,
     "clear(offset, nbytes)\n--\n\nGive pages back to the system; False: a peer hangs in them."},
    {"prefault", (PyCFunction)segment_prefault, METH_VARARGS,
     "prefault(offset, nbytes)\n--\n\nTouch pages before they are used; False: not possible."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef segment_getset[] = {
    {"fd", (getter)segment_fd, NULL, "Descriptor of the memory; -1 if it is another process's.",
     NULL},
    {"nbytes", (getter)segment_nbytes, NULL, "Size, mostly untouched.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot segment_slots[] = {
    {Py_tp_doc, "Shared memory of one process, with a directory of the areas of its groups."},
    {Py_tp_dealloc, segment_dealloc},
    {Py_tp_methods, segment_methods},
    {Py_tp_getset, segment_getset},
    {0, NULL},
};

static PyType_Spec segment_spec = {
    .name = "allhands._native.Segment",
    .basicsize = sizeof(SegmentObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = segment_slots,
};

/* ---------------------------------------------------------------- Block */

typedef struct {
    PyObject_HEAD
    SegmentObject *segment;
    PyObject *weakrefs;
    size_t offset;
    size_t nbytes;
} BlockObject;

static PyObject *block_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *segment;
    Py_ssize_t offset, nbytes;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!nn", Segment_Type, &segment, &offset, &nbytes)) return NULL;
    SegmentObject *owner = (SegmentObject *)segment;
    if (offset < (Py_ssize_t)sizeof(Head) || nbytes < 0 || (size_t)offset > owner->nbytes ||
        (size_t)nbytes > owner->nbytes - (size_t)offset)
        return PyErr_Format(PyExc_ValueError, "no such part of the segment");
    BlockObject *self = (BlockObject *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->segment = (SegmentObject *)Py_NewRef(segment);
    self->offset = (size_t)offset;
    self->nbytes = (size_t)nbytes;
    return (PyObject *)self;
}

static void block_dealloc(BlockObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    Py_XDECREF(self->segment);
    type->tp_free(self);
    Py_DECREF(type);
}

static int block_buffer(BlockObject *self, Py_buffer *view, int flags) {
    return PyBuffer_FillInfo(view, (PyObject *)self, self->segment->base + self->offset,
                             (Py_ssize_t)self->nbytes, 0, flags);
}

static PyMemberDef block_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(BlockObject, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot block_slots[] = {
    {Py_tp_doc, "Block(segment, offset, nbytes)\n--\n\nA writeable buffer in a segment."},
    {Py_tp_new, block_new},
    {Py_tp_dealloc, block_dealloc},
    {Py_tp_members, block_members},
    {Py_bf_getbuffer, block_buffer},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "allhands._native.Block",
    .basicsize = sizeof(BlockObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = block_slots,
};

size_t segment_area_bytes(int size, const ah_limits *limits) {
    return ah_area_bytes(size, limits) + ah_p2p_region_bytes(size);
}

bool segment_areas(PyObject *segments, PyObject *offsets, size_t needed, void *areas[]) {
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(segments); at++) {
        PyObject *item = PyTuple_GET_ITEM(segments, at);
        size_t offset = PyLong_AsSize_t(PyTuple_GET_ITEM(offsets, at));
        if (PyErr_Occurred()) return false;
        SegmentObject *segment = (SegmentObject *)item;
        if (!PyObject_TypeCheck(item, Segment_Type) || offset % 4096 || offset > segment->nbytes ||
            needed > segment->nbytes - offset) {
            PyErr_SetString(PyExc_ValueError, "an area lies outside its segment");
            return false;
        }
        areas[at] = segment->base + offset;
    }
    return true;
}

bool segment_places(PyObject *segments, PyObject *offsets, PyObject *pids, size_t needed,
                    size_t heap_offset, size_t heap_bytes, void *areas[], void *heaps[],
                    pid_t processes[]) {
    if (!segment_areas(segments, offsets, needed, areas)) return false;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(segments); at++) {
        const SegmentObject *segment = (SegmentObject *)PyTuple_GET_ITEM(segments, at);
        processes[at] = (pid_t)PyLong_AsLong(PyTuple_GET_ITEM(pids, at));
        if (PyErr_Occurred()) return false;
        if (heap_offset > segment->nbytes || heap_bytes > segment->nbytes - heap_offset) {
            PyErr_SetString(PyExc_ValueError, "a heap lies outside its segment");
            return false;
        }
        heaps[at] = segment->base + heap_offset;
    }
    return true;
}

int add_segment_types(PyObject *module) {
    Segment_Type = (PyTypeObject *)PyType_FromSpec(&segment_spec);
    Block_Type = (PyTypeObject *)PyType_FromSpec(&block_spec);
    if (Segment_Type == NULL || Block_Type == NULL) return -1;
    if (PyModule_AddIntConstant(module, "HEAD_BYTES", (sizeof(Head) + 4095) / 4096 * 4096) < 0)
        return -1;
    if (PyModule_AddObjectRef(module, "Block", (PyObject *)Block_Type) < 0) return -1;
    return PyModule_AddObjectRef(module, "Segment", (PyObject *)Segment_Type);
}
