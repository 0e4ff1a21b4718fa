#include "python/dlpack.h"

#include "python/arrays.h"

/* ---------------------------------------------------------------- as the standard has them */

typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void (*allocate)(void), (*export_managed)(void), (*import_managed)(void);
    int (*export_borrowed)(void *object, DLTensor *tensor); /* NULL: not supported */
} DLPackExchangeAPI;

enum { MAJOR = 1, DEVICE_CPU = 1 };
enum {
    CODE_INT = 0,
    CODE_UINT = 1,
    CODE_FLOAT = 2,
    CODE_BFLOAT = 4,
    CODE_BOOL = 6,
    CODE_FLOAT8_E4M3FN = 10,
    CODE_FLOAT8_E5M2 = 12
};

/* ---------------------------------------------------------------- */

/* NumPy's number of a type; -1: none. Complex ones may be views of their conjugates, and go the
 * way that sees it. */
static int number_of(const DLTensor *tensor) {
    static const struct {
        uint8_t code, bits;
        ah_type type;
    } types[] = {
        {CODE_FLOAT, 32, AH_FLOAT32},
        {CODE_FLOAT, 64, AH_FLOAT64},
        {CODE_BFLOAT, 16, AH_BFLOAT16},
        {CODE_FLOAT, 16, AH_FLOAT16},
        {CODE_INT, 64, AH_INT64},
        {CODE_INT, 32, AH_INT32},
        {CODE_INT, 16, AH_INT16},
        {CODE_INT, 8, AH_INT8},
        {CODE_UINT, 64, AH_UINT64},
        {CODE_UINT, 32, AH_UINT32},
        {CODE_UINT, 16, AH_UINT16},
        {CODE_UINT, 8, AH_UINT8},
        {CODE_BOOL, 8, AH_BOOL},
        {CODE_FLOAT8_E4M3FN, 8, AH_FLOAT8_E4M3FN},
        {CODE_FLOAT8_E5M2, 8, AH_FLOAT8_E5M2},
    };
    for (size_t at = 0; at < sizeof types / sizeof *types; at++)
        if (types[at].code == tensor->code && types[at].bits == tensor->bits)
            return number_of_type(types[at].type);
    return -1;
}

/* Whether it is contiguous and has elements. */
static bool is_block(const DLTensor *tensor) {
    int64_t expected = 1;
    for (int at = tensor->ndim - 1; at >= 0; at--) {
        if (tensor->shape[at] == 0) return false;
        if (tensor->shape[at] != 1 && tensor->strides[at] != expected) return false;
        expected *= tensor->shape[at];
    }
    return tensor->data != NULL;
}

PyObject *view_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 2) return PyErr_Format(PyExc_TypeError, "view_dlpack(exchange, tensor)");
    const DLPackExchangeAPI *exchange = PyCapsule_GetPointer(args[0], "dlpack_exchange_api");
    if (exchange == NULL) return NULL;
    if (exchange->major != MAJOR || exchange->export_borrowed == NULL) Py_RETURN_NONE;
    DLTensor tensor;
    if (exchange->export_borrowed(args[1], &tensor) != 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    if (tensor.device_type != DEVICE_CPU || tensor.lanes != 1 || tensor.ndim > SHAPE_DIMS ||
        !is_block(&tensor))
        Py_RETURN_NONE;
    int number = number_of(&tensor);
    PyArray_Descr *dtype = number < 0 ? NULL : PyArray_DescrFromType(number);
    if (dtype == NULL) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    npy_intp dims[SHAPE_DIMS];
    for (int at = 0; at < tensor.ndim; at++) dims[at] = (npy_intp)tensor.shape[at];
    return array_over(args[1], (char *)tensor.data + tensor.byte_offset, tensor.ndim, dims, dtype);
}
