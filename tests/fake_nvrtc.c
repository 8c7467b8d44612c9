/* A stand-in for libnvrtc that is told by variables what to be:
 *   FAKE_NVRTC_VERSION  "13.0" by default
 *   FAKE_NVRTC_RESULT   what nvrtcCompileProgram returns
 *   FAKE_NVRTC_REFUSES  options, between blanks, that it does not know
 *   FAKE_NVRTC_DENIES   what no source may contain, else it has an error
 *   FAKE_NVRTC_MS       how long a compilation takes
 *   FAKE_NVRTC_LOG      a file that gets a line with the options of every compilation */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INVALID_OPTION = 5, COMPILATION = 6 };
static const char said[] = "the fake says no\n";

static const char *variable(const char *name, const char *fallback)
{
	const char *value = getenv(name);
	return value ? value : fallback;
}

int nvrtcVersion(int *major, int *minor);
int nvrtcVersion(int *major, int *minor)
{
	return sscanf(variable("FAKE_NVRTC_VERSION", "13.0"), "%d.%d", major, minor) != 2;
}

const char *nvrtcGetErrorString(int result);
const char *nvrtcGetErrorString(int result) { return "FAKE_ERROR"; }

int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *header,
                       const char *const *include_name);
int nvrtcCreateProgram(void **program, const char *source, const char *name, int headers, const char *const *header,
                       const char *const *include_name)
{
	memcpy(program, &source, sizeof source); /* which its owner keeps until it is compiled */
	return 0;
}

int nvrtcDestroyProgram(void **program);
int nvrtcDestroyProgram(void **program)
{
	*program = NULL;
	return 0;
}

int nvrtcCompileProgram(void *program, int count, const char *const *option);
int nvrtcCompileProgram(void *program, int count, const char *const *option)
{
	int result = atoi(variable("FAKE_NVRTC_RESULT", "0"));
	if (getenv("FAKE_NVRTC_DENIES") && strstr(program, getenv("FAKE_NVRTC_DENIES")))
		result = COMPILATION;
	const int ms = atoi(variable("FAKE_NVRTC_MS", "0"));
	nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
	FILE *log = getenv("FAKE_NVRTC_LOG") ? fopen(getenv("FAKE_NVRTC_LOG"), "a") : NULL;
	for (int i = 0; i < count; i++) {
		if (log)
			fprintf(log, "%s ", option[i]);
		if (strstr(variable("FAKE_NVRTC_REFUSES", ""), option[i]))
			result = INVALID_OPTION;
	}
	if (log) {
		fputc('\n', log);
		fclose(log);
	}
	return result;
}

static int copy(char *out, const char *bytes, size_t len)
{
	memcpy(out, bytes, len);
	return 0;
}
static int size(size_t *len, size_t value)
{
	*len = value;
	return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *len);
int nvrtcGetCUBINSize(void *program, size_t *len) { return size(len, 5); }
int nvrtcGetCUBIN(void *program, char *out);
int nvrtcGetCUBIN(void *program, char *out) { return copy(out, "cubin", 5); }
int nvrtcGetPTXSize(void *program, size_t *len);
int nvrtcGetPTXSize(void *program, size_t *len) { return size(len, 4); }
int nvrtcGetPTX(void *program, char *out);
int nvrtcGetPTX(void *program, char *out) { return copy(out, "ptx", 4); }
int nvrtcGetProgramLogSize(void *program, size_t *len);
int nvrtcGetProgramLogSize(void *program, size_t *len) { return size(len, sizeof said); }
int nvrtcGetProgramLog(void *program, char *out);
int nvrtcGetProgramLog(void *program, char *out) { return copy(out, said, sizeof said); }
int nvrtcGetNumSupportedArchs(int *count);
int nvrtcGetNumSupportedArchs(int *count)
{
	*count = 2;
	return 0;
}
int nvrtcGetSupportedArchs(int *arch);
int nvrtcGetSupportedArchs(int *arch)
{
	arch[0] = 50;
	arch[1] = 61;
	return 0;
}
