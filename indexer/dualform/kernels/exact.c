/* Canonical scores: sums in float64, as query/score/canonical.py defines them. */

#include "kernels.h"

#include <math.h>

#define AHEAD 6 /* keys fetched before their turn: rows lie far apart, and memory answers late */
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
        FETCH(next + i, 0);
        if (i + LINE <= upper) {
            FETCH(next + half + i, 0);
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

NARROW_FORMS(canonical_pairs,
             (const float *const *keys, const int64_t *query, const float *queries, int64_t pairs, int64_t d,
              double *terms, double *scores),
             (keys, query, queries, pairs, d, terms, scores))

#ifdef X86
/* Eight products from i on. */
VNNI INLINE __m512d products(const float *key, const float *query, int64_t i) {
    return _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(key + i)), _mm512_cvtps_pd(_mm256_loadu_ps(query + i)));
}

/* Those of the last dimensions, zeros past the end. */
VNNI INLINE __m512d last_products(const float *key, const float *query, int64_t i, int64_t d) {
    const __mmask8 there = (__mmask8)((1 << (d - i)) - 1);
    return _mm512_mul_pd(_mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, key + i)),
                         _mm512_cvtps_pd(_mm256_maskz_loadu_ps(there, query + i)));
}

/* Those from i on, which is less than half, and those half the tree further; on the way, `next` is fetched. */
VNNI INLINE __m512d leaf(const float *key, const float *query, int64_t i, int64_t half, int64_t d, const float *next) {
    const int64_t further = i + half;
    if (i % LINE == 0) FETCH(next + i, 0);
    const __m512d sum = products(key, query, i);
    if (further >= d) return sum;
    if (i % LINE == 0) FETCH(next + further, 0);
    return _mm512_add_pd(sum, further + 8 <= d ? products(key, query, further) : last_products(key, query, further, d));
}

/* The sum of eight terms, as the last levels of the tree have it. */
VNNI INLINE double sum_of_eight(__m512d terms) {
    const __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(terms), _mm512_extractf64x4_pd(terms, 1));
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two));
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
    for (half = part / 2; half >= 8; half /= 2)
        for (int64_t i = 0; i < half; i += 8)
            _mm512_storeu_pd(terms + i, _mm512_add_pd(_mm512_loadu_pd(terms + i), _mm512_loadu_pd(terms + half + i)));
    return sum_of_eight(_mm512_loadu_pd(terms)) + 0.0;
}

VNNI static void canonical_pairs_vnni(const float *const *keys, const int64_t *query, const float *queries,
                                      int64_t pairs, int64_t d, double *terms, double *scores) {
    for (int64_t p = 0; p < pairs; p++)
        scores[p] = canonical_wide_tree(keys[p], queries + query[p] * d, d, terms,
                                        keys[p + AHEAD < pairs ? p + AHEAD : p]);
}
#endif

/* Scores of pairs: keys[p] with queries[query[p]]. `terms` is scratch for 2^ceil(log2 d) numbers. d > 0. */
void dualform_canonical(const float *const *keys, const int64_t *query, const float *queries, int64_t pairs, int64_t d,
                        double *terms, double *scores) {
    CALL(canonical_pairs, keys, query, queries, pairs, d, terms, scores);
}

/* A bound of what rounding does to a score: the sum of |key * query|, in float32. */
INLINE float size_of(const float *key, const float *query, int64_t d) {
    float sums[LINE] = {0};
    int64_t i = 0;
    for (; i + LINE <= d; i += LINE)
        for (int j = 0; j < LINE; j++) sums[j] += fabsf(key[i + j] * query[i + j]);
    for (; i < d; i++) sums[0] += fabsf(key[i] * query[i]);
    for (int half = LINE / 2; half >= 1; half /= 2)
        for (int j = 0; j < half; j++) sums[j] += sums[half + j];
    return sums[0];
}

INLINE void sizes(const float *const *keys, const float *query, int64_t count, int64_t d, float *found) {
    for (int64_t p = 0; p < count; p++) found[p] = size_of(keys[p], query, d);
}

ALL_FORMS(sizes, (const float *const *keys, const float *query, int64_t count, int64_t d, float *found),
          (keys, query, count, d, found))

/* Of each key, the sum over the dimensions of |key * query|, in float32 in some order. */
void dualform_sizes(const float *const *keys, const float *query, int64_t count, int64_t d, float *found) {
    CALL(sizes, keys, query, count, d, found);
}

INLINE void canonical_rows(const double *keys, int64_t rows, const float *query, int64_t d, double *terms,
                           double *scores) {
    for (int64_t r = 0; r < rows; r++) scores[r] = canonical_wide_score(keys + r * d, query, d, terms);
}

ALL_FORMS(canonical_rows,
          (const double *keys, int64_t rows, const float *query, int64_t d, double *terms, double *scores),
          (keys, rows, query, d, terms, scores))

/* Scores of float64 keys [rows][d] with one query; `terms` likewise. d > 0. */
void dualform_canonical_rows(const double *keys, int64_t rows, const float *query, int64_t d, double *terms,
                             double *scores) {
    CALL(canonical_rows, keys, rows, query, d, terms, scores);
}
