/* The generator under test: group_words, and head_key. GENERATOR names another header than the default. */
#pragma once

#ifndef GENERATOR
#define GENERATOR "tests/battery/dropout.h"
#endif
#define DEVICE static inline
#include GENERATOR
