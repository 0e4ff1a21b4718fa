#include "python/attribute_names.h"

AttributeNames attribute_names;

int find_attribute_names(void) {
#define FIND_NAME(name)                                                                            \
    if ((attribute_names.name = PyUnicode_InternFromString(#name)) == NULL) return -1;
    FOR_ATTRIBUTE_NAMES(FIND_NAME)
#undef FIND_NAME
    return 0;
}
