/* A program that is linked with a runtime library: its references carry the library's version node. */
#include <stddef.h>

#include "check.h"

int cudaMalloc(void **out, size_t size);
int cudaFree(void *start);
int cudaRuntimeGetVersion(int *version);

int main(void)
{
	void *memory;
	int version;
	CHECK(cudaRuntimeGetVersion(&version) == 0 && version / 1000 == VERSION);
	CHECK(cudaMalloc(&memory, 4096) == 0 && cudaFree(memory) == 0);
	puts("ok");
	return 0;
}
