/* The generator under test: dropout_words and dropout_head_key. GENERATOR names another header than the default. */
#pragma once

#ifndef GENERATOR
#define GENERATOR "tests/battery/candidate.h"
#endif
#define DEVICE static inline
#include GENERATOR
