/* SPDX-License-Identifier: Apache-2.0 */
/* From glibc 2.34 on, __libc_start_main calls the constructors of the program itself. Before, the program passed it
 * functions that call constructors and destructors. */
typedef void Constructor(int, char **, char **);
typedef void Destructor(void);
extern Constructor *__preinit_array_start[], *__preinit_array_end[], *__init_array_start[], *__init_array_end[];
extern Destructor *__fini_array_start[], *__fini_array_end[];
extern Destructor _init, _fini;

static void construct(int count, char **words, char **environment) {
    for (Constructor **it = __preinit_array_start; it != __preinit_array_end; ++it)
        (*it)(count, words, environment);
    _init();
    for (Constructor **it = __init_array_start; it != __init_array_end; ++it)
        (*it)(count, words, environment);
}

static void destruct(void) {
    for (Destructor **it = __fini_array_end; it != __fini_array_start;)
        (*--it)();
    _fini();
}

typedef int Main(int, char **, char **);
int old_start_main(Main *, int, char **, Constructor *, Destructor *, Destructor *, void *);
#ifdef __x86_64__
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.2.5");
#else
__asm__(".symver old_start_main, __libc_start_main@GLIBC_2.17");
#endif

int __libc_start_main(Main *main, int count, char **words, Constructor *, Destructor *, Destructor *end_of_loader,
                      void *stack_end);

int __libc_start_main(Main *main, int count, char **words, Constructor *none, Destructor *nothing,
                      Destructor *end_of_loader, void *stack_end) {
    (void)none;
    (void)nothing;
    return old_start_main(main, count, words, construct, destruct, end_of_loader, stack_end);
}
