/* fault: what a failing call of the public interface tells its caller, gathered on the way up. */
#ifndef FAGEN_FAULT_H
#define FAGEN_FAULT_H

#include "gen/diag.h"
#include "runtime/fagen.h"

struct fault {
	struct diag *diag;   /* the sentences */
	int code;            /* FAGEN_ERROR_* */
	int cuda_result, nvrtc_result;
	char field[64];
};

/* Appends a message and sets the code and, unless NULL, the field. Returns -1. */
int fault_fail(struct fault *, int code, const char *field, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* An invalid member of a struct of the caller: "name.member", a blank and the rest are the message. */
int fault_member(struct fault *, const char *name, const char *member, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* For a stage that appended its own messages: sets the code, takes the field from the quoted line of the spec. -1. */
int fault_stage(struct fault *, int code);
/* Empties the caller's object, which may be NULL. Nothing is written past its struct_size. */
void fault_clear(fagen_error *);
/* Fills the caller's object from a fault, frees the fault's messages and returns its code. */
int fault_report(fagen_error *, struct fault *);

/* Copies a public struct of the caller over one of this version: fields that the caller's version does not have are
 * zero. -1 when struct_size was not set. */
int struct_take(void *to, size_t size, const void *from);
/* The other way: writes no more than the caller's struct_size. */
int struct_give(void *to, const void *from, size_t size);

#endif
