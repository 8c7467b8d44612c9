# translate.awk cuda.hpp SOURCE: emitted CUDA source as C++ that includes cuda.hpp. What the second cannot say in C++ is replaced: shared
# variables, kernels' attributes, and functions with asm, which cuda.hpp has by the same name.
function shared(line,   declared, type, name, size) {
	match(line, /^[ \t]*/)
	declared = substr(line, RLENGTH + 1)
	sub(/;.*/, "", declared)
	sub(/^extern /, "", declared) && size = "extern"
	sub(/^__shared__ (__align__\([0-9]+\) )?/, "", declared)
	match(declared, /[A-Za-z_0-9]+(\[[A-Za-z_0-9]*\])?$/)
	type = substr(declared, 1, RSTART - 1)
	name = substr(declared, RSTART)
	sub(/\[.*/, "", name)
	if (size == "extern")
		return type "*const " name " = (" type "*)emulate_now->shared;"
	size = substr(declared, RSTART + length(name))
	return type "(&" name ")" size " = *(" type "(*)" size ")emulate_static(sizeof(" type size "));"
}
# The functions of cuda.hpp.
FNR == NR {
	if (match($0, /^(template <[^(]*> )?WRAP [^(]*\(/)) {
		name = substr($0, RSTART, RLENGTH - 1)
		sub(/.*[ *]/, "", name)
		known[name] = 1
	}
	next
}
FNR == 1 { print "#include \"tests/emulate/cuda.hpp\"" }

/^#define DEVICE / { print "#define DEVICE static inline"; next }
/^#pragma (nv_|unroll)/ || /^[ \t]*#pragma unroll/ { print ""; next }
/^struct (Fp16|Bf16)( \{\})?;$/ { print ""; next }
/^#line 1 / { place = $3; print; next }

# A function: kept back until its end, to see whether it has asm.
!held && (/^template <.*>$/ || /^(template <.*> )?DEVICE /) { held = 1; body = ""; asm = 0; head = "" }
held {
	body = body (/__shared__/ ? shared($0) : $0) "\n"
	if (head == "" && /DEVICE/ && match($0, /[A-Za-z_0-9]+\(/))
		head = substr($0, RSTART, RLENGTH - 1)
	if (/(^|[^A-Za-z_])asm( volatile)?\(|__cvta_generic_to_shared/)
		asm = 1
	if (!/^}/ && !/^(template <.*> )?DEVICE .*[};]( \/\/.*)?$/)
		next
	held = 0
	if (!asm) {
		printf "%s", body
		next
	}
	gsub(/[^\n]+/, "", body)
	printf "%s", body
	if (!(head in known))
		printf "#error %s has the instruction %s, which tests/emulate/cuda.hpp has not: add there what it does.\n", place, head
	next
}

# A kernel: its attributes, and a way to call it.
/^extern "C" __global__/ { kernel = 1; cluster = 1 }
kernel {
	if (match($0, /__cluster_dims__\([0-9]+/))
		cluster = substr($0, RSTART + 17, RLENGTH - 17)
	gsub(/__(launch_bounds|cluster_dims)__\([^)]*\) */, "")
	if (match($0, /[A-Za-z_0-9]+\(/)) {
		entry[++entries] = substr($0, RSTART, RLENGTH - 1)
		clusters[entries] = cluster
		kernel = 0
	}
}
/__shared__/ { print shared($0); next }
{ print }
END {
	for (i = 1; i <= entries; i++)
		printf "extern \"C\" const emulate_kernel emulate_%s = {[](void **params) { kernel_run(%s, params); }, %s};\n", entry[i], entry[i], clusters[i]
}
