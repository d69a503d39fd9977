/* Single entries of gradients, and sums along directions, which the recorder adds up over a step's slots. Sums are
   float64. */

#include "kernels.h"

#include <math.h>
#include <stdlib.h>

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

/* All entries of a weight, and of a bias, whose keys are 1: each output's side by side. */
INLINE void add_whole(const slots_t *call, int with_weight, double *entries, double *magnitudes, double *sum,
                      double *magnitude) {
    for (int64_t o = 0; o < call->d_out; o++) {
        double errors = 0.0, sizes = 0.0;
        if (with_weight)
            for (int64_t c = 0; c < call->d_in; c++) sum[c] = magnitude[c] = 0.0;
        for (int64_t t = 0; t < call->n; t++) {
            const double error = call->errors[t * call->d_out + o], size = fabs(error);
            const float *key = call->keys + t * call->keys_apart;
            errors += error;
            sizes += size;
            if (with_weight)
                for (int64_t c = 0; c < call->d_in; c++) {
                    const double x = key[c];
                    sum[c] += error * x;
                    magnitude[c] += size * fabs(x);
                }
        }
        if (with_weight)
            for (int64_t c = 0; c < call->d_in; c++) {
                entries[call->entries + o * call->d_in + c] += sum[c];
                magnitudes[call->entries + o * call->d_in + c] += magnitude[c];
            }
        if (call->of_bias >= 0) {
            entries[call->of_bias + o] += errors;
            magnitudes[call->of_bias + o] += sizes;
        }
    }
}

ALL_FORMS(add_whole,
          (const slots_t *call, int with_weight, double *entries, double *magnitudes, double *sum, double *magnitude),
          (call, with_weight, entries, magnitudes, sum, magnitude))

/* Of every call: adds its slots to `sums`, along directions; to `entries` and `magnitudes`, unless they are NULL; and
   fills the sums of the squares of its errors and of its projected keys [count][2]. Returns 1 where there is no memory,
   else 0. */
int32_t dualform_add_slots(const slots_t *calls, int64_t count, double *sums, double *entries, double *magnitudes,
                           double *squares) {
    int64_t width = 1;
    for (const slots_t *c = calls; c < calls + count; c++) {
        if (2 * c->d_in > width) width = 2 * c->d_in;
        if (c->d_out > width) width = c->d_out;
    }
    double *numbers = malloc((size_t)width * sizeof(double));
    int32_t failed = numbers == NULL;
    for (int64_t i = 0; i < count && !failed; i++) {
        const slots_t *c = calls + i;
        failed = dualform_outer(c->keys, c->n, c->d_in, c->keys_apart, c->directions, c->errors, c->d_out,
                                sums + c->weight, numbers, squares + 2 * i);
        if (failed) break;
        if (c->bias >= 0)
            for (int64_t o = 0; o < c->d_out; o++) sums[c->bias + o] += numbers[o];
        if (entries == NULL) continue;
        if (c->columns != NULL)
            dualform_entries(c->keys, c->n, c->keys_apart, c->columns, c->errors, c->d_out, c->rows, c->chosen,
                             entries + c->entries, magnitudes + c->entries);
        if (c->columns == NULL || c->of_bias >= 0)
            CALL(add_whole, c, c->columns == NULL, entries, magnitudes, numbers, numbers + c->d_in);
    }
    free(numbers);
    return failed;
}
