#include "runtime/fault.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fault_fail(struct fault *f, int code, const char *field, const char *format, ...)
{
	struct text message = {0};
	va_list args;
	va_start(args, format);
	text_vaddf(&message, format, args);
	va_end(args);
	diag_fail(f->diag, "%s", text_str(&message));
	text_free(&message);
	f->code = code;
	if (field)
		snprintf(f->field, sizeof f->field, "%s", field);
	return -1;
}

int fault_member(struct fault *f, const char *name, const char *member, const char *format, ...)
{
	char field[64];
	struct text why = {0};
	va_list args;
	va_start(args, format);
	text_vaddf(&why, format, args);
	va_end(args);
	snprintf(field, sizeof field, "%s.%s", name, member);
	fault_fail(f, FAGEN_ERROR_INVALID, field, "%s %s", field, text_str(&why));
	text_free(&why);
	return -1;
}

static int is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* The last `key:` of a line of YAML that starts at or before a column, counted from 1. */
static void key_at(char *key, size_t size, const char *line, size_t len, size_t column)
{
	for (size_t i = 0; i < len && i < column; i++) {
		if (!is_word(line[i]) || (i && is_word(line[i - 1])))
			continue;
		size_t end = i;
		while (end < len && is_word(line[end]))
			end++;
		if (end < len && line[end] == ':' && end - i < size) {
			memcpy(key, line + i, end - i);
			key[end - i] = '\0';
		}
	}
}

int fault_stage(struct fault *f, int code)
{
	f->code = code;
	if (f->diag->first.line <= 0)
		return -1;
	/* Below the message, diag_at quotes the line of the spec, and below that it puts a caret. */
	const char *quoted = strchr(text_str(&f->diag->text), '\n');
	const char *below = quoted ? strchr(quoted + 1, '\n') : NULL;
	if (!below)
		return -1;
	const size_t caret = 1 + strspn(below + 1, " \t");
	if (below[caret] == '^')
		key_at(f->field, sizeof f->field, quoted + 1, (size_t)(below - quoted - 1), caret);
	return -1;
}

void fault_clear(fagen_error *error)
{
	if (!error || error->struct_size < sizeof error->struct_size)
		return;
	size_t size = error->struct_size < sizeof *error ? error->struct_size : sizeof *error;
	const size_t message = offsetof(fagen_error, message);
	if (size > message)
		size = message + 1;
	memset((char *)error + sizeof error->struct_size, 0, size - sizeof error->struct_size);
}

int fault_report(fagen_error *error, struct fault *f)
{
	const int code = f->code;
	fagen_error full = {.code = code,
	                    .cuda_result = f->cuda_result,
	                    .nvrtc_result = f->nvrtc_result,
	                    .line = f->diag->first.line,
	                    .column = f->diag->first.column};
	snprintf(full.field, sizeof full.field, "%s", f->field);
	const char *message = text_str(&f->diag->text);
	if (!strncmp(message, "error: ", 7))
		message += 7;
	size_t len = strlen(message);
	while (len && message[len - 1] == '\n')
		len--;
	if (len >= sizeof full.message)
		len = sizeof full.message - 1;
	memcpy(full.message, message, len);
	if (error && error->struct_size >= sizeof error->struct_size) {
		struct_give(error, &full, sizeof full);
		if (error->struct_size > offsetof(fagen_error, message) && error->struct_size < sizeof full)
			((char *)error)[error->struct_size - 1] = '\0';
	}
	diag_free(f->diag);
	return code;
}

int struct_take(void *to, size_t size, const void *from)
{
	uint32_t given;
	memcpy(&given, from, sizeof given);
	if (given < sizeof given)
		return -1;
	const size_t n = given < size ? given : size;
	memcpy(to, from, n);
	memset((char *)to + n, 0, size - n);
	return 0;
}

int struct_give(void *to, const void *from, size_t size)
{
	uint32_t given;
	memcpy(&given, to, sizeof given);
	if (given < sizeof given)
		return -1;
	const size_t n = given < size ? given : size;
	memcpy((char *)to + sizeof given, (const char *)from + sizeof given, n - sizeof given);
	return 0;
}
