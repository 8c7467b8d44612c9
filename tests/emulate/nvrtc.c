/* nvrtc: a libnvrtc.so.13 whose "cubin" is a shared library for the CPU: translate.awk makes C++ of the source, g++ compiles it. It lies in
 * build/emulate, whence it finds the sources. EMULATE_SOURCES, a hash of what it compiles with, is in the build id and so in the keys of the
 * cache. */
#include <dlfcn.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, OUT_OF_MEMORY = 1, COMPILATION = 6, LOG_MAX = 4000, PATH_SIZE = 512 };

extern const char emulate_sources[];
const char emulate_sources[] = "emulate " EMULATE_SOURCES;

struct program {
	char *source;
	char *code;
	size_t code_len;
	char log[LOG_MAX];
};

int nvrtcVersion(int *major, int *minor);
const char *nvrtcGetErrorString(int result);
int nvrtcCreateProgram(struct program **, const char *source, const char *name, int headers, const char *const *header,
                       const char *const *include_name);
int nvrtcDestroyProgram(struct program **);
int nvrtcCompileProgram(struct program *, int count, const char *const *option);
int nvrtcGetCUBINSize(struct program *, size_t *len);
int nvrtcGetCUBIN(struct program *, char *to);
int nvrtcGetPTXSize(struct program *, size_t *len);
int nvrtcGetPTX(struct program *, char *to);
int nvrtcGetProgramLogSize(struct program *, size_t *len);
int nvrtcGetProgramLog(struct program *, char *to);

int nvrtcVersion(int *major, int *minor)
{
	*major = 13;
	*minor = 0;
	return OK;
}

const char *nvrtcGetErrorString(int result) { return result == OUT_OF_MEMORY ? "out of memory" : "g++ refuses the source"; }

int nvrtcCreateProgram(struct program **to, const char *source, const char *name, int headers, const char *const *header,
                       const char *const *include_name)
{
	struct program *p = calloc(1, sizeof *p);
	if (!p || !(p->source = strdup(source))) {
		free(p);
		return OUT_OF_MEMORY;
	}
	*to = p;
	return OK;
}

int nvrtcDestroyProgram(struct program **program)
{
	free((*program)->source);
	free((*program)->code);
	free(*program);
	*program = NULL;
	return OK;
}

/* The whole of a file; NULL: it is not there. */
static char *file_read(const char *folder, const char *name, size_t *len)
{
	char path[PATH_SIZE];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	FILE *f = fopen(path, "r");
	char *bytes = NULL;
	if (f && !fseek(f, 0, SEEK_END)) {
		const long size = ftell(f);
		rewind(f);
		bytes = size < 0 ? NULL : malloc((size_t)size + 1);
		*len = bytes ? fread(bytes, 1, (size_t)size, f) : 0;
		if (bytes)
			bytes[*len] = '\0';
	}
	if (f)
		fclose(f);
	return bytes;
}

/* Runs the compiler in a folder of its own that holds the source. */
static int compile_in(const char *folder, const char *source)
{
	char command[6 * PATH_SIZE], path[PATH_SIZE];
	Dl_info own;
	char *here = dladdr((void *)(size_t)&nvrtcVersion, &own) ? realpath(own.dli_fname, NULL) : NULL;
	snprintf(path, sizeof path, "%s/kernel.cu", folder);
	FILE *f = fopen(path, "w");
	const bool written = f && fputs(source, f) >= 0;
	int rc = -1;
	if (!(f && fclose(f)) && written && here) {
		const char *place = dirname(here);
		snprintf(command, sizeof command,
		         "here='%s' root='%s/../..' && cd '%s' && "
		         "awk -f \"$root/tests/emulate/translate.awk\" \"$root/tests/emulate/cuda.hpp\" kernel.cu >kernel.cpp 2>log && "
		         "${CXX:-g++} -std=c++17 -O2 -w -Wfatal-errors -Wno-psabi -fno-strict-aliasing -fPIC -shared -DELEMENT_BF16=%d \"-I$root\" "
		         "-o kernel.so kernel.cpp \"$here/libcuda.so.1\" >>log 2>&1",
		         place, place, folder, strstr(source, "using Element = Bf16") != NULL);
		rc = system(command);
	}
	free(here);
	return rc;
}

int nvrtcCompileProgram(struct program *p, int count, const char *const *option)
{
	char folder[] = "/tmp/fagen-emulate.XXXXXX";
	if (!mkdtemp(folder))
		return COMPILATION;
	const int failed = compile_in(folder, p->source);
	size_t len;
	char *log = file_read(folder, "log", &len);
	if (log)
		snprintf(p->log, sizeof p->log, "%s", log);
	free(log);
	if (!failed)
		p->code = file_read(folder, "kernel.so", &p->code_len);
	static const char *const left[] = {"kernel.cu", "kernel.cpp", "kernel.so", "log"};
	for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
		char path[PATH_SIZE];
		snprintf(path, sizeof path, "%s/%s", folder, left[i]);
		unlink(path);
	}
	rmdir(folder);
	return p->code ? OK : COMPILATION;
}

int nvrtcGetCUBINSize(struct program *p, size_t *len)
{
	*len = p->code_len;
	return OK;
}
int nvrtcGetCUBIN(struct program *p, char *to)
{
	memcpy(to, p->code, p->code_len);
	return OK;
}
int nvrtcGetPTXSize(struct program *p, size_t *len) { return COMPILATION; }
int nvrtcGetPTX(struct program *p, char *to) { return COMPILATION; }
int nvrtcGetProgramLogSize(struct program *p, size_t *len)
{
	*len = strlen(p->log) + 1;
	return OK;
}
int nvrtcGetProgramLog(struct program *p, char *to)
{
	strcpy(to, p->log);
	return OK;
}
