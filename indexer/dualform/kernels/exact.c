/* Sums in float64: the reported scores, and what the recorder measures. */

#include "kernels.h"

#define AHEAD 3 /* keys fetched before their turn: rows lie far apart, and memory answers late */
#define LINE 16 /* float32 numbers of a cache line */

/* ---- canonical ---- */

/* `next` is a key that is to come: it is fetched line by line while this one is added up. */
INLINE double canonical_score(const float *key, const float *query, int64_t d, double *terms, const float *next) {
    int64_t half = 1;
    while (half * 2 < d) half *= 2;
    if (d == 1) return (double)key[0] * query[0] + 0.0;
    /* The products of two float32 are exact, so it does not matter whether they are fused with the sum. */
    const int64_t upper = d - half;
    for (int64_t i = 0; i < half; i += LINE) {
        const int64_t count = half - i < LINE ? half - i : LINE;
        __builtin_prefetch(next + i);
        if (i + LINE <= upper) {
            __builtin_prefetch(next + half + i);
            for (int64_t j = i; j < i + LINE; j++)
                terms[j] = (double)key[j] * query[j] + (double)key[half + j] * query[half + j];
        } else if (i >= upper && count == LINE)
            for (int64_t j = i; j < i + LINE; j++) terms[j] = (double)key[j] * query[j];
        else
            for (int64_t j = i; j < i + count; j++)
                terms[j] = (double)key[j] * query[j] + (j < upper ? (double)key[half + j] * query[half + j] : 0.0);
    }
    for (half /= 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

/* The same for float64 keys. Their products are rounded, and must not be fused with the sum (-ffp-contract=off). */
INLINE double canonical_wide_score(const double *key, const float *query, int64_t d, double *terms) {
    int64_t half = 1;
    while (half * 2 < d) half *= 2;
    if (d == 1) return key[0] * query[0] + 0.0;
    const int64_t upper = d - half;
    for (int64_t i = 0; i < upper; i++) terms[i] = key[i] * query[i] + key[half + i] * query[half + i];
    for (int64_t i = upper; i < half; i++) terms[i] = key[i] * query[i];
    for (half /= 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

INLINE void canonical_pairs(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs,
                            int64_t d, double *terms, double *scores) {
    for (int64_t p = 0; p < pairs; p++)
        scores[p] = canonical_score(keys[p], queries + query[p] * d, d, terms, keys[p + AHEAD < pairs ? p + AHEAD : p]);
}

#ifdef VNNI
/* Eight products from i on, zeros past the end. */
VNNI INLINE __m512d products(const float *key, const float *query, int64_t i, int64_t d) {
    const __mmask8 there = d - i >= 8 ? 0xFF : d > i ? (__mmask8)((1 << (d - i)) - 1) : 0;
    return _mm512_mul_pd(_mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, key + i)),
                         _mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, query + i)));
}

/* Those from i on and those half the tree further; on the way, `next` is fetched. */
VNNI INLINE __m512d leaf(const float *key, const float *query, int64_t i, int64_t half, int64_t d, const float *next) {
    __builtin_prefetch(next + i);
    const __m512d sum = products(key, query, i, d);
    if (i + half >= d) return sum;
    __builtin_prefetch(next + half + i);
    return _mm512_add_pd(sum, products(key, query, i + half, d));
}

/* The same tree. Its first four levels are added in registers: one pass over the products instead of four. */
VNNI static double canonical_wide_tree(const float *key, const float *query, int64_t d, double *terms,
                                       const float *next) {
    int64_t half = 1;
    while (half * 2 < d) half *= 2;
    if (half < 64) return canonical_score(key, query, d, terms, next);
    const int64_t part = half / 8;
#define LEAF(j) leaf(key, query, i + (j) * part, half, d, next)
#define PAIR(j) _mm512_add_pd(LEAF(j), LEAF((j) + 4))
#define FOUR(j) _mm512_add_pd(PAIR(j), PAIR((j) + 2))
    for (int64_t i = 0; i < part; i += 8) _mm512_storeu_pd(terms + i, _mm512_add_pd(FOUR(0), FOUR(1)));
    for (half = part / 2; half >= 1; half /= 2)
        for (int64_t i = 0; i < half; i++) terms[i] += terms[half + i];
    return terms[0] + 0.0;
}

VNNI static void canonical_wide(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs,
                                int64_t d, double *terms, double *scores) {
    for (int64_t p = 0; p < pairs; p++)
        scores[p] = canonical_wide_tree(keys[p], queries + query[p] * d, d, terms,
                                        keys[p + AHEAD < pairs ? p + AHEAD : p]);
}

VNNI static void canonical_rows_wide(const double *keys, int64_t rows, const float *query, int64_t d, double *terms,
                                     double *scores) {
    for (int64_t r = 0; r < rows; r++) scores[r] = canonical_wide_score(keys + r * d, query, d, terms);
}
#endif

/* Scores of pairs: keys[p] with queries[query[p]]. `terms` is scratch for 2^ceil(log2 d) numbers. d > 0. */
void dualform_canonical(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs, int64_t d,
                        double *terms, double *scores) {
#ifdef VNNI
    if (dualform_fast()) {
        canonical_wide(keys, query, queries, pairs, d, terms, scores);
        return;
    }
#endif
    canonical_pairs(keys, query, queries, pairs, d, terms, scores);
}

/* Scores of float64 keys [rows][d] with one query; `terms` likewise. d > 0. */
void dualform_canonical_rows(const double *keys, int64_t rows, const float *query, int64_t d, double *terms,
                             double *scores) {
#ifdef VNNI
    if (dualform_fast()) {
        canonical_rows_wide(keys, rows, query, d, terms, scores);
        return;
    }
#endif
    for (int64_t r = 0; r < rows; r++) scores[r] = canonical_wide_score(keys + r * d, query, d, terms);
}

/* ---- project and fold ----

   The recorder measures at every step of a training, so each of these takes all DIRECTIONS in one pass over its matrix:
   float32 numbers are widened once, and all sums are float64. */

#define BLOCK 128 /* rows that are folded while they lie in the cache */

INLINE double product_plain(const float *row, const double *direction, int64_t columns) {
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4)
        for (int i = 0; i < 4; i++) sums[i] += row[c + i] * direction[c + i];
    for (; c < columns; c++) sums[0] += row[c] * direction[c];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static void project_plain(const float *matrix, int64_t rows, int64_t columns, const double *directions, double *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int k = 0; k < DIRECTIONS; k++)
            out[r * DIRECTIONS + k] = product_plain(matrix + r * columns, directions + k * columns, columns);
}

static void project_one_plain(const float *matrix, int64_t rows, int64_t columns, const double *direction,
                              double *out) {
    for (int64_t r = 0; r < rows; r++) out[r] = product_plain(matrix + r * columns, direction, columns);
}

static void fold_plain(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = matrix + r * columns;
        for (int k = 0; k < DIRECTIONS; k++) {
            const double weight = weights[r * DIRECTIONS + k];
            for (int64_t c = 0; c < columns; c++) out[k * columns + c] += weight * row[c];
        }
        double *summed = out + DIRECTIONS * columns, *squares = summed + columns;
        for (int64_t c = 0; c < columns; c++) {
            summed[c] += row[c];
            squares[c] += (double)row[c] * row[c];
        }
    }
}

#ifdef VNNI
VNNI INLINE __mmask8 first_of(int64_t count) { return count >= 8 ? 0xFF : count > 0 ? (__mmask8)((1 << count) - 1) : 0; }

VNNI INLINE __m512d widened(const float *numbers, __mmask8 there) {
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, numbers));
}

/* `count` rows (a constant) at once: each direction is loaded for all of them. The next rows are fetched meanwhile. */
VNNI INLINE void project_rows(const float *matrix, int64_t columns, const double *directions, double *out,
                              const int count) {
    __m512d sums[3][DIRECTIONS];
    for (int r = 0; r < count; r++)
        for (int k = 0; k < DIRECTIONS; k++) sums[r][k] = _mm512_setzero_pd();
    for (int64_t c = 0; c < columns; c += 8) {
        const __mmask8 there = first_of(columns - c);
        __m512d x[3];
        for (int r = 0; r < count; r++) {
            x[r] = widened(matrix + r * columns + c, there);
            __builtin_prefetch(matrix + (r + count) * columns + c);
        }
        for (int k = 0; k < DIRECTIONS; k++) {
            const __m512d direction = _mm512_maskz_loadu_pd(there, directions + k * columns + c);
            for (int r = 0; r < count; r++) sums[r][k] = _mm512_fmadd_pd(x[r], direction, sums[r][k]);
        }
    }
    for (int r = 0; r < count; r++)
        for (int k = 0; k < DIRECTIONS; k++) out[r * DIRECTIONS + k] = _mm512_reduce_add_pd(sums[r][k]);
}

VNNI static void project_wide(const float *matrix, int64_t rows, int64_t columns, const double *directions,
                              double *out) {
    int64_t r = 0;
    for (; r + 3 <= rows; r += 3) project_rows(matrix + r * columns, columns, directions, out + r * DIRECTIONS, 3);
    for (; r < rows; r++) project_rows(matrix + r * columns, columns, directions, out + r * DIRECTIONS, 1);
}

VNNI static void project_one_wide(const float *matrix, int64_t rows, int64_t columns, const double *direction,
                                  double *out) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row = matrix + r * columns;
        __m512d sums[4];
        for (int i = 0; i < 4; i++) sums[i] = _mm512_setzero_pd();
        int64_t c = 0;
        for (; c + 32 <= columns; c += 32)
            for (int i = 0; i < 4; i++)
                sums[i] = _mm512_fmadd_pd(_mm512_cvtps_pd(_mm256_loadu_ps(row + c + 8 * i)),
                                          _mm512_loadu_pd(direction + c + 8 * i), sums[i]);
        for (; c < columns; c += 8) {
            const __mmask8 there = first_of(columns - c);
            sums[0] = _mm512_fmadd_pd(widened(row + c, there), _mm512_maskz_loadu_pd(there, direction + c), sums[0]);
        }
        out[r] = _mm512_reduce_add_pd(
            _mm512_add_pd(_mm512_add_pd(sums[0], sums[1]), _mm512_add_pd(sums[2], sums[3])));
    }
}

/* A block of rows, sixteen columns at a time: what is added up stays in registers. */
VNNI static void fold_block(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out) {
    for (int64_t c = 0; c < columns; c += 16) {
        const __mmask8 there[2] = {first_of(columns - c), first_of(columns - c - 8)};
        __m512d sums[DIRECTIONS + 2][2];
        for (int k = 0; k < DIRECTIONS + 2; k++)
            for (int i = 0; i < 2; i++) sums[k][i] = _mm512_maskz_loadu_pd(there[i], out + k * columns + c + 8 * i);
        for (int64_t r = 0; r < rows; r++) {
            const __m512d x[2] = {widened(matrix + r * columns + c, there[0]),
                                  widened(matrix + r * columns + c + 8, there[1])};
            for (int k = 0; k < DIRECTIONS; k++) {
                const __m512d weight = _mm512_set1_pd(weights[r * DIRECTIONS + k]);
                for (int i = 0; i < 2; i++) sums[k][i] = _mm512_fmadd_pd(weight, x[i], sums[k][i]);
            }
            for (int i = 0; i < 2; i++) {
                sums[DIRECTIONS][i] = _mm512_add_pd(sums[DIRECTIONS][i], x[i]);
                sums[DIRECTIONS + 1][i] = _mm512_fmadd_pd(x[i], x[i], sums[DIRECTIONS + 1][i]);
            }
        }
        for (int k = 0; k < DIRECTIONS + 2; k++)
            for (int i = 0; i < 2; i++) _mm512_mask_storeu_pd(out + k * columns + c + 8 * i, there[i], sums[k][i]);
    }
}

VNNI static void fold_wide(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out) {
    for (int64_t r = 0; r < rows; r += BLOCK)
        fold_block(matrix + r * columns, rows - r < BLOCK ? rows - r : BLOCK, columns, weights + r * DIRECTIONS, out);
}
#endif

/* Each row of float32 [rows][columns] times each of float64 [DIRECTIONS][columns]: float64 [rows][DIRECTIONS]. */
void dualform_project(const float *matrix, int64_t rows, int64_t columns, const double *directions, double *out) {
#ifdef VNNI
    if (dualform_fast()) {
        project_wide(matrix, rows, columns, directions, out);
        return;
    }
#endif
    project_plain(matrix, rows, columns, directions, out);
}

/* Each row of float32 [rows][columns] times one direction float64 [columns]: float64 [rows]. */
void dualform_project_one(const float *matrix, int64_t rows, int64_t columns, const double *direction, double *out) {
#ifdef VNNI
    if (dualform_fast()) {
        project_one_wide(matrix, rows, columns, direction, out);
        return;
    }
#endif
    project_one_plain(matrix, rows, columns, direction, out);
}

/* Adds to float64 [DIRECTIONS + 2][columns]: the rows times each of their weights, the rows, and their squares. */
void dualform_fold(const float *matrix, int64_t rows, int64_t columns, const double *weights, double *out) {
#ifdef VNNI
    if (dualform_fast()) {
        fold_wide(matrix, rows, columns, weights, out);
        return;
    }
#endif
    fold_plain(matrix, rows, columns, weights, out);
}
