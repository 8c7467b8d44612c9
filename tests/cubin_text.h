/* cubin_text: the machine instructions of one kernel in a cubin, 16 bytes each, the opcode in the low bits. */
#pragma once

#include <check.h>
#include <elf.h>
#include <stdint.h>
#include <string.h>

#include "runtime/runtime.h"

enum { INSTRUCTION = 16, OPCODE = 0xfff };

struct cubin_text {
	const unsigned char *code;
	int count; /* with what pads it to a whole number of cache lines */
};

static inline struct cubin_text cubin_text(const struct cubin *cubin, const char *entry)
{
	const unsigned char *image = cubin->code;
	Elf64_Ehdr head;
	Elf64_Shdr names, section;
	memcpy(&head, image, sizeof head);
	memcpy(&names, image + head.e_shoff + head.e_shstrndx * sizeof names, sizeof names);
	for (int i = 0; i < head.e_shnum; i++) {
		memcpy(&section, image + head.e_shoff + (size_t)i * sizeof section, sizeof section);
		const char *name = (const char *)image + names.sh_offset + section.sh_name;
		if (strncmp(name, ".text.", 6) == 0 && strcmp(name + 6, entry) == 0)
			return (struct cubin_text){image + section.sh_offset, (int)(section.sh_size / INSTRUCTION)};
	}
	ck_abort_msg("no kernel %s", entry);
	return (struct cubin_text){NULL, 0};
}

/* The first half of an instruction. */
static inline uint64_t instruction_at(struct cubin_text text, int i)
{
	uint64_t word;
	memcpy(&word, text.code + (size_t)i * INSTRUCTION, sizeof word);
	return word;
}
