/* A folder of its own for a test run, which goes with all that is in it. */
#ifndef FAGEN_FOLDER_HELP_H
#define FAGEN_FOLDER_HELP_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

enum { FOLDER_MAX = 64 };

static inline void folder_make(char folder[FOLDER_MAX], const char *suite)
{
	snprintf(folder, FOLDER_MAX, "/tmp/fagen-%s-XXXXXX", suite);
	ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline int folder_remove_one(const char *at, const struct stat *st, int flag, struct FTW *ftw) { return remove(at); }
static inline void folder_remove(const char *folder) { nftw(folder, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

#endif
