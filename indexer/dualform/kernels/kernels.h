/* The compiled loops: of questions, of recording, and of updates that are run again. Python calls them without its lock (see __init__.py).

   codes.c        float32 keys -> 8-bit codes and what they leave out
   screen.c       which rows can be among the k best, by the codes alone; and products of codes
   candidates.c   those rows, and the floors that they have to reach
   exact.c        canonical scores, as query/score/canonical.py defines them
   sums.c         sums of absolute scores by group
   key_sums.c     sums of keys by group
   weighed.c      sums of rows, each with a weight
   pairs.c        sums of products whose factors are known up to an error
   projections.c  sums along directions, that the recorder takes at every step
   entries.c      single entries of gradients, likewise
   distances.c    of the weights from what the record makes of them, likewise
   updates.c      updates that are run again

   Rows lie in groups of ROWS, and of each group four dimensions of all its rows lie together: one instruction then
   multiplies four dimensions of sixteen rows, and the sums of sixteen rows come out in one register.

   Loops come in forms: a portable one, and for processors with such instructions one of AVX2 and one of AVX-512 VNNI.
   Scores, updates and measures have the same bits in all of them, whatever compiled them: sums are in one order, and a
   product is fused with a sum only where fma says so (-ffp-contract=off). */

#ifndef DUALFORM_KERNELS_H
#define DUALFORM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define X86
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
#ifdef __clang__ /* drops the whole attribute for one word that it does not know */
#define VNNI __attribute__((target(AVX512)))
#else
#define VNNI __attribute__((target(AVX512 ",prefer-vector-width=512")))
#endif
#endif

#define ROWS 16 /* as in __init__.py */
#define DIRECTIONS 8 /* that the recorder projects along, as in __init__.py */
#define TILE 12 /* queries multiplied together with one register of keys */
#define INLINE static inline __attribute__((always_inline))
/* Fetch a cache line before its turn, to the second level: of the first, only a few lines can be on their way at once,
   and whoever asks for one more waits. It may lie past the end: nothing is read from there. */
#define FETCH(from, bytes) __builtin_prefetch((const void *)((uintptr_t)(from) + (uintptr_t)(bytes)), 0, 2)

/* The forms, as FORMS in loader.py; and which one is in use. */
enum { PORTABLE_FORM, AVX2_FORM, VNNI_FORM };
int32_t dualform_form(void);

/* Call the form of a loop that is in use: NAME_portable, NAME_avx2 or NAME_vnni. */
#ifdef X86
#define CALL(NAME, ...)                                             \
    (dualform_form() == VNNI_FORM   ? NAME##_vnni(__VA_ARGS__)      \
     : dualform_form() == AVX2_FORM ? NAME##_avx2(__VA_ARGS__)      \
                                    : NAME##_portable(__VA_ARGS__))
#else
#define CALL(NAME, ...) NAME##_portable(__VA_ARGS__)
#endif

/* Forms of an inline function NAME that are left to the compiler; the parameters with their types, then without. */
#ifdef X86
#define NARROW_FORMS(NAME, TYPED, BARE)               \
    static void NAME##_portable TYPED { NAME BARE; }  \
    AVX2 static void NAME##_avx2 TYPED { NAME BARE; }
#define ALL_FORMS(NAME, TYPED, BARE) \
    NARROW_FORMS(NAME, TYPED, BARE)  \
    VNNI static void NAME##_vnni TYPED { NAME BARE; }
#else
#define NARROW_FORMS(NAME, TYPED, BARE) \
    static void NAME##_portable TYPED { NAME BARE; }
#define ALL_FORMS NARROW_FORMS
#endif

/* What the recorder projects at once. */
typedef struct {
    const float *numbers; /* [rows][columns], or [rows] */
    int64_t rows;
    int64_t columns;
    const double *directions; /* [columns], or NULL */
    int64_t start;            /* place in what is filled */
} matrix_t;

/* The slots of one call of a layer, and where in float64 vectors it is that they are added up: a place is -1 where there
   is none. */
typedef struct {
    const float *keys;   /* [n][d_in] */
    const float *errors; /* [n][d_out] */
    int64_t n;
    int64_t keys_apart; /* numbers from one key to the next */
    int64_t d_in;
    int64_t d_out;
    const double *directions; /* [d_in] */
    int64_t weight;           /* place along directions, of [d_out][DIRECTIONS] */
    int64_t bias;             /* likewise of [d_out] */
    const int32_t *columns;   /* [chosen], with the next, of single entries of the weight; NULL where all are taken */
    const int32_t *rows;
    int64_t chosen;
    int64_t entries; /* their place among entries, of [chosen], or of [d_out][d_in] */
    int64_t of_bias; /* likewise of [d_out] */
} slots_t;

int32_t dualform_outer(const float *keys, int64_t n, int64_t d_in, int64_t apart, const double *directions,
                       const float *errors, int64_t d_out, double *weighted, double *summed, double *squares);

/* A segment's keys in eight bits: x = scale * code + low + what `residual` is the norm of. */
typedef struct {
    uint8_t *codes;  /* [groups][words][ROWS][4] */
    float *scale;    /* [groups * ROWS], likewise the next three */
    float *low;
    float *residual; /* at least |x - scale * code - low| */
    float *length;   /* at least |scale * code| */
    const int32_t *group; /* [rows of the layer]: the group of each, -1 for one that the mask leaves out; NULL: all 0 */
    int64_t rows;
    int64_t words; /* ceil(d / 4) */
    int64_t first; /* number of the segment's first row in the layer */
} keys_t;

/* q = scale * code + fine * second code + what `residual` is the norm of. The second codes, where there are any, make
   two columns of a query: the reading of the keys takes longer than twice the products of a few queries. */
typedef struct {
    const int8_t *codes; /* [tiles][words][TILE][4] */
    const float *scale;  /* [count], likewise the next five */
    const float *fine;
    const float *sum;    /* the sum of q's numbers */
    const float *length; /* at least |q| */
    const float *residual;
    const float *slack; /* for |low|: rounding of the sum */
    int64_t count;
    int64_t columns; /* of a query: 1 or 2 */
    /* The greatest and the least number that multiplies the product of a row, and how far off either may be: [count]
       [rows of the layer], or [rows of the layer] for all queries, where `apart` is 0. NULL: 1, and exact. */
    const float *most;
    const float *least;
    const float *spread;
    int64_t apart;
    int32_t absolute;
} queries_t;

/* Products that are wanted themselves, each times a number of its row and one of its query. */
typedef struct {
    const float *of_row;   /* [rows of the layer] */
    const float *of_query; /* [count] */
    float *products;       /* [count][rows of the layer], `apart` numbers from one query's to the next one's */
    float *errors;         /* likewise: how far off they may be */
    int64_t apart;
} products_t;

/* One worker's candidates: for each query the rows that could be among the k best of their group. */
typedef struct {
    int64_t k, groups, capacity;
    float *best;      /* [count][groups][2 k]: lower bounds, the k greatest so far among them */
    int64_t *held;    /* [count][groups]: how many there are */
    float *floors;    /* [count][groups]: at most the k-th greatest; -infinity while there are fewer */
    int64_t *rows;    /* [count][capacity] */
    float *high;      /* [count][capacity]: upper bounds */
    int64_t *counts;  /* [count] */
    uint8_t *crowded; /* [count]: more rows than capacity, so that the query must be answered in another way */
} candidates_t;

/* Add a row to a query's candidates if it can still be among the k best (candidates.c). */
void dualform_offer(candidates_t *candidates, const int32_t *group_of, int64_t query, int64_t row, float low,
                    float high);

/* Rows of scores in runs: each of one group, whose rows count equally often. */
typedef struct {
    const int64_t *starts; /* [count + 1]: the first row of each, and one past the last row */
    const int64_t *groups; /* [count]; the runs of a group are neighbours */
    const double *times;   /* [count] */
    int64_t count;
} runs_t;

/* Scores of rows with some queries, of which each is a column. */
typedef struct {
    const double *wide;  /* rows of `columns`, which lie `apart` numbers from one to the next; NULL where `narrow` are */
    const float *narrow; /* likewise: scores of what keys have beyond the mean of their group */
    const float *base;   /* of each group the scores of its mean, rows `base_apart` numbers apart; NULL beside `wide` */
    int64_t apart;
    int64_t base_apart;
    int64_t sums_apart; /* numbers from one group's sums to the next one's */
    int64_t columns;
} scores_t;

/* One update of Adam: what rules/adam.py makes of its settings. */
typedef struct {
    double sign;             /* -1 where it maximizes */
    double coupled;          /* weight decay that is added to the gradient */
    double share;            /* of the descent in the average, and what is left of the average before */
    double rest;
    double share_of_squares; /* likewise of the squares */
    double rest_of_squares;
    double correction;       /* that the squares are divided by */
    double rate;             /* over the correction of the average */
    double eps;
    double left;             /* what decoupled decay leaves of a weight */
    int32_t rounds;          /* whether that product is rounded to float32 */
} adam_t;

#endif
