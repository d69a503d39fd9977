/* The loops that every key of every question passes through. Python calls them without its lock (see __init__.py).

   codes.c     float32 keys -> 8-bit codes and what they leave out
   screen.c    which rows can be among the k best, by the codes alone
   exact.c     canonical scores, as query/score/canonical.py defines them
   measures.c  what the recorder measures at every step
   updates.c   updates that are run again

   Rows lie in groups of ROWS, and of each group four dimensions of all its rows lie together: one instruction then
   multiplies four dimensions of sixteen rows, and the sums of sixteen rows come out in one register. */

#ifndef DUALFORM_KERNELS_H
#define DUALFORM_KERNELS_H

#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,prefer-vector-width=512")))
#endif

#define ROWS 16 /* as in __init__.py */
#define DIRECTIONS 8 /* that the recorder projects along, as in __init__.py */
#define TILE 12 /* queries multiplied together with one register of keys */
#define INLINE static inline __attribute__((always_inline))

/* Whether this processor has the instructions that make the screen faster than a float32 product. */
int32_t dualform_fast(void);

/* What the recorder projects at once. */
typedef struct {
    const float *numbers; /* [rows][columns], or [rows] */
    int64_t rows;
    int64_t columns;
    const double *directions; /* [columns], or NULL */
    int64_t start;            /* place in what is filled */
} matrix_t;

/* A segment's keys in eight bits: x = scale * code + low + what `residual` is the norm of. */
typedef struct {
    uint8_t *codes;  /* [groups][words][ROWS][4] */
    float *scale;    /* [groups * ROWS], likewise the next three */
    float *low;
    float *residual; /* at least |x - scale * code - low| */
    float *length;   /* at least |scale * code| */
    const int32_t *group; /* [rows]: the group of each row, -1 for a row that the mask leaves out; NULL: all 0 */
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
    int32_t absolute;
} queries_t;

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
