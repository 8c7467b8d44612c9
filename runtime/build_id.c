/* build_id: what a shared library is, read from the file. Two builds of one version differ in it, copies do not. */
#include "cache/digest.h"
#include "runtime/nvrtc.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOTES_MAX = 65536, ID_MAX = 64 };

static int read_at(int fd, void *bytes, size_t len, uint64_t at)
{
	for (size_t done = 0; done < len;) {
		const ssize_t got = pread(fd, (char *)bytes + done, len - done, (off_t)(at + done));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -1;
		done += (size_t)got;
	}
	return 0;
}

static void add_hex(struct text *text, const uint8_t *bytes, size_t len)
{
	for (size_t i = 0; i < len; i++)
		text_addf(text, "%02x", bytes[i]);
}

/* Finds the id among the notes of one segment. */
static int find_note(struct text *text, const uint8_t *notes, size_t len)
{
	for (size_t at = 0; len - at >= sizeof(Elf64_Nhdr);) {
		Elf64_Nhdr note;
		memcpy(&note, notes + at, sizeof note);
		at += sizeof note;
		const size_t name = ((size_t)note.n_namesz + 3) & ~(size_t)3,
			     desc = ((size_t)note.n_descsz + 3) & ~(size_t)3;
		if (name > len - at || desc > len - at - name)
			return -1;
		if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(notes + at, "GNU", 4) == 0 &&
		    note.n_descsz > 0 && note.n_descsz <= ID_MAX) {
			add_hex(text, notes + at + name, note.n_descsz);
			return 0;
		}
		at += name + desc;
	}
	return -1;
}

static int find_build_id(struct text *text, int fd)
{
	Elf64_Ehdr header;
	if (read_at(fd, &header, sizeof header, 0) != 0 || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
	    header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_phentsize != sizeof(Elf64_Phdr))
		return -1;
	for (int i = 0; i < header.e_phnum; i++) {
		Elf64_Phdr segment;
		if (read_at(fd, &segment, sizeof segment, header.e_phoff + (uint64_t)i * sizeof segment) != 0)
			return -1;
		if (segment.p_type != PT_NOTE || segment.p_filesz == 0 || segment.p_filesz > NOTES_MAX)
			continue;
		uint8_t *notes = malloc(segment.p_filesz);
		const int found = notes && read_at(fd, notes, segment.p_filesz, segment.p_offset) == 0
		                          ? find_note(text, notes, segment.p_filesz)
		                          : -1;
		free(notes);
		if (found == 0)
			return 0;
	}
	return -1;
}

static int hash_file(struct text *text, int fd)
{
	enum { CHUNK = 1 << 16 };
	uint8_t digest[32], *chunk = malloc(CHUNK);
	if (!chunk)
		return -1;
	struct sha256_ctx hash;
	sha256_init(&hash);
	ssize_t got;
	for (off_t at = 0; (got = pread(fd, chunk, CHUNK, at)) != 0;) {
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			break;
		sha256_update(&hash, (size_t)got, chunk);
		at += got;
	}
	digest_end(digest, &hash);
	free(chunk);
	if (got < 0)
		return -1;
	text_puts(text, "sha256:");
	add_hex(text, digest, sizeof digest);
	return 0;
}

int build_id_read(struct text *text, const char *path)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	const int result = find_build_id(text, fd) == 0 ? 0 : hash_file(text, fd);
	const int why = errno;
	close(fd);
	errno = why;
	return result;
}
