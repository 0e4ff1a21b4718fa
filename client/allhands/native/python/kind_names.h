/* The names of the kinds of calls, by their numbers. */
#ifndef ALLHANDS_KIND_NAMES_H
#define ALLHANDS_KIND_NAMES_H

#include "collectives/kinds.h"

extern const char *const kind_names[AH_KINDS];

#endif
