/* Single entries of gradients, which the recorder adds up over a step's slots. Sums are float64. */

#include "kernels.h"

#include <math.h>

#define RUN 16    /* neighbouring entries, one row and one column on from each to the next, that are summed together */
#define SLOTS 64  /* whose rows lie in the cache while every entry takes its two numbers from each */

/* `length` entries, a constant. */
INLINE void add_neighbours(const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart, int64_t n,
                           const int length, double *sums, double *magnitudes) {
    double sum[RUN] = {0.0}, magnitude[RUN] = {0.0};
    for (int64_t t = 0; t < n; t++)
        for (int e = 0; e < length; e++) {
            const double term = (double)errors[t * errors_apart + e] * (double)keys[t * keys_apart + e];
            sum[e] += term;
            magnitude[e] += fabs(term);
        }
    for (int e = 0; e < length; e++) {
        sums[e] += sum[e];
        magnitudes[e] += magnitude[e];
    }
}

INLINE void add_run(const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart, int64_t n,
                    double *sums, double *magnitudes) {
    add_neighbours(keys, keys_apart, errors, errors_apart, n, RUN, sums, magnitudes);
}

NARROW_FORMS(add_run,
             (const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart, int64_t n, double *sums,
              double *magnitudes),
             (keys, keys_apart, errors, errors_apart, n, sums, magnitudes))

#ifdef X86
/* The same sums in the same order. */
VNNI static void add_run_vnni(const float *keys, int64_t keys_apart, const float *errors, int64_t errors_apart,
                              int64_t n, double *sums, double *magnitudes) {
    __m512d sum[2], magnitude[2];
    for (int i = 0; i < 2; i++) sum[i] = magnitude[i] = _mm512_setzero_pd();
    for (int64_t t = 0; t < n; t++)
        for (int i = 0; i < 2; i++) {
            const __m512d term = _mm512_mul_pd(_mm512_cvtps_pd(_mm256_loadu_ps(errors + t * errors_apart + 8 * i)),
                                               _mm512_cvtps_pd(_mm256_loadu_ps(keys + t * keys_apart + 8 * i)));
            sum[i] = _mm512_add_pd(sum[i], term);
            magnitude[i] = _mm512_add_pd(magnitude[i], _mm512_abs_pd(term));
        }
    for (int i = 0; i < 2; i++) {
        _mm512_storeu_pd(sums + 8 * i, _mm512_add_pd(_mm512_loadu_pd(sums + 8 * i), sum[i]));
        _mm512_storeu_pd(magnitudes + 8 * i, _mm512_add_pd(_mm512_loadu_pd(magnitudes + 8 * i), magnitude[i]));
    }
}
#endif

static int is_run(const int32_t *columns, const int32_t *rows) {
    int found = 1;
    for (int e = 1; e < RUN; e++) found &= columns[e] == columns[0] + e && rows[e] == rows[0] + e;
    return found;
}

/* Of n slots with rows of keys and of errors, float32, which lie `keys_apart` and `errors_apart` numbers from one to the
   next: adds to each of `count` entries the sum over slots of error[rows[e]] key[columns[e]], and that of its magnitude.
   Soonest where entries lie in runs. */
void dualform_entries(const float *keys, int64_t n, int64_t keys_apart, const int32_t *columns, const float *errors,
                      int64_t errors_apart, const int32_t *rows, int64_t count, double *sums, double *magnitudes) {
    for (int64_t t = 0; t < n; t += SLOTS) {
        const int64_t slots = n - t < SLOTS ? n - t : SLOTS;
        const float *key = keys + t * keys_apart, *error = errors + t * errors_apart;
        for (int64_t e = 0; e < count;) {
            const float *own = key + columns[e], *other = error + rows[e];
            if (e + RUN <= count && is_run(columns + e, rows + e)) {
                CALL(add_run, own, keys_apart, other, errors_apart, slots, sums + e, magnitudes + e);
                e += RUN;
            } else {
                add_neighbours(own, keys_apart, other, errors_apart, slots, 1, sums + e, magnitudes + e);
                e++;
            }
        }
    }
}
