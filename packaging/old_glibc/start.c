/* SPDX-License-Identifier: Apache-2.0 */
/* From glibc 2.34 on, __libc_start_main calls the constructors of the program itself. Before, the program passed it a
 * function that does. The loader calls what is in .preinit_array, and the destructors. */
typedef void Constructor(int, char **, char **);
typedef void Function(void);
extern Constructor *__init_array_start[], *__init_array_end[];
extern Function _init;

static void construct(int count, char **words, char **environment) {
    _init();
    for (Constructor **it = __init_array_start; it != __init_array_end; ++it)
        (*it)(count, words, environment);
}

typedef int Main(int, char **, char **);
int old_start_main(Main *, int, char **, Constructor *, Function *, Function *, void *);
#ifdef __x86_64__
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.17");
#endif

int __libc_start_main(Main *main, int count, char **words, Constructor *, Function *, Function *end_of_loader,
                      void *stack_end);

int __libc_start_main(Main *main, int count, char **words, Constructor *none, Function *nothing,
                      Function *end_of_loader, void *stack_end) {
    (void)none;
    (void)nothing;
    return old_start_main(main, count, words, construct, 0, end_of_loader, stack_end);
}
