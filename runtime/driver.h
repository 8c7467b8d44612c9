/* driver: the inside of driver.c, for runtime/, check/ and cli/. Contexts are only ever pushed and popped: whatever was
 * current before a call is current after it. */
#ifndef FAGEN_DRIVER_H
#define FAGEN_DRIVER_H

#include "runtime/dl.h"
#include "runtime/fault.h"
#include "runtime/runtime.h"

/* The table of calls; its pointers are NULL before driver_init. */
const struct cuda_calls *driver_calls(const struct driver *);
/* As driver_init, for callers that build a fault. */
int driver_start(struct driver *, struct fault *);
/* -1 with a message when this process is a fork of the one that started the driver. Takes no lock. */
int driver_check_fork(const struct driver *, struct fault *);
int driver_gpu(struct gpu *, struct driver *, int ordinal, struct fault *);
/* The primary context of a device, retained on the first call and released by driver_close. */
int driver_primary(cu_context *, struct driver *, int ordinal, struct fault *);
/* Makes it current until driver_pop. */
int driver_push(struct driver *, int ordinal, struct fault *);
int driver_pop(struct driver *, struct fault *);
/* Appends "`what` failed: <name> (<number>): <the driver's words>". Returns -1. */
int driver_fail(const struct driver *, struct fault *, cu_result, const char *what);

#endif
