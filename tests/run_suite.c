/* Runs one Check suite; tests/t_NAME.c provides it. CK_RUN_CASE, CK_FORK=no and friends work as usual. */
#include <check.h>
#include <stdlib.h>

Suite *suite(void);

int main(void)
{
	SRunner *runner = srunner_create(suite());
	srunner_run_all(runner, CK_ENV);
	const int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
