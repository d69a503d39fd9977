/* Which rows can be among the k best, by their codes alone: see query/search/screen.py. And what codes say of products:
   query/search/screen.py. */

#include "kernels.h"

#include <math.h>
#include <string.h>

typedef int32_t sums_t[TILE][ROWS];

/* Products of a group of rows with the first `count` queries of a tile, summed over all words. */
typedef void multiply_t(const uint8_t *key, const int8_t *query, int64_t words, int64_t count, sums_t sums);

static void multiply_portable(const uint8_t *key, const int8_t *query, int64_t words, int64_t count, sums_t sums) {
    memset(sums, 0, sizeof(int32_t) * ROWS * count);
    for (int64_t w = 0; w < words; w++, key += ROWS * 4, query += TILE * 4)
        for (int64_t q = 0; q < count; q++)
            for (int r = 0; r < ROWS; r++)
                sums[q][r] += key[4 * r] * query[4 * q] + key[4 * r + 1] * query[4 * q + 1] +
                              key[4 * r + 2] * query[4 * q + 2] + key[4 * r + 3] * query[4 * q + 3];
}

/* What float32 may have rounded of a row's factors and of a product with them: relative, of factors far below the others
   of their query, which lie within 1, and of products that are no normal numbers. */
#define FACTOR_SLACK 0x1p-20f
#define FACTOR_TINY 0x1p-100f
#define PRODUCT_TINY 0x1p-120f
#define ERROR_SLACK 0x1.0001p0f /* of an error that is written: above what float32 rounds of it, here and where it is read */

/* A row's score and error once its factors multiply them: the best that any of its entries can have. */
INLINE void weigh(const queries_t *queries, int64_t at, float *score, float *error) {
    const float most = queries->most[at], least = queries->least[at];
    const float size = fmaxf(fabsf(most), fabsf(least)), wide = fabsf(*score) + *error;
    const float spread = queries->spread ? queries->spread[at] : 0;
    *error = *error * size + wide * (size * FACTOR_SLACK + spread + FACTOR_TINY) + PRODUCT_TINY;
    *score = fmaxf(*score * most, *score * least);
}

/* What the codes say of the products of a group's rows with a query, and how far off it may be. */
INLINE void bound_group(const keys_t *keys, const queries_t *queries, int64_t g, int64_t q, const int32_t (*sums)[ROWS],
                        float scores[ROWS], float errors[ROWS]) {
    const int64_t row = g * ROWS;
    const float *low = keys->low + row, *scale = keys->scale + row;
    for (int r = 0; r < ROWS; r++) {
        float score = low[r] * queries->sum[q] + (float)sums[0][r] * (scale[r] * queries->scale[q]);
        if (queries->columns == 2) score += (float)sums[1][r] * (scale[r] * queries->fine[q]);
        scores[r] = score;
        errors[r] = keys->residual[row + r] * queries->length[q] + keys->length[row + r] * queries->residual[q] +
                    fabsf(low[r]) * queries->slack[q];
    }
}

/* Offers the rows of a group whose upper bound reaches the floor. */
INLINE void judge_group(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t g, int64_t q,
                        const int32_t (*sums)[ROWS]) {
    const int64_t row = g * ROWS, there = keys->rows - row < ROWS ? keys->rows - row : ROWS;
    float scores[ROWS], errors[ROWS], lows[ROWS], highs[ROWS];
    bound_group(keys, queries, g, q, sums, scores, errors);
    if (queries->most)
        for (int64_t r = 0; r < there; r++)
            weigh(queries, q * queries->apart + keys->first + row + r, scores + r, errors + r);
    for (int r = 0; r < ROWS; r++) {
        const float score = queries->absolute ? fabsf(scores[r]) : scores[r];
        lows[r] = score - errors[r];
        highs[r] = score + errors[r];
    }
    const int32_t *group = keys->group ? keys->group + keys->first + row : NULL;
    for (int64_t r = 0; r < there; r++)
        if (!group || group[r] >= 0) dualform_offer(candidates, keys->group, q, keys->first + row + r, lows[r], highs[r]);
}

/* Writes the products of a group's rows with a query. */
INLINE void write_group(const keys_t *keys, const queries_t *queries, const products_t *products, int64_t g, int64_t q,
                        const int32_t (*sums)[ROWS]) {
    const int64_t row = g * ROWS, there = keys->rows - row < ROWS ? keys->rows - row : ROWS;
    float scores[ROWS], errors[ROWS];
    bound_group(keys, queries, g, q, sums, scores, errors);
    for (int64_t r = 0; r < there; r++) {
        const int64_t at = keys->first + row + r;
        const float factor = products->of_row[at] * products->of_query[q];
        products->products[q * products->apart + at] = scores[r] * factor;
        products->errors[q * products->apart + at] = (errors[r] + fabsf(scores[r]) * FACTOR_SLACK) * fabsf(factor) * ERROR_SLACK;
    }
}

/* Whether the mask leaves a row of a group. */
INLINE int present(const keys_t *keys, int64_t g) {
    if (!keys->group) return g * ROWS < keys->rows;
    for (int64_t row = g * ROWS; row < (g + 1) * ROWS && row < keys->rows; row++)
        if (keys->group[keys->first + row] >= 0) return 1;
    return 0;
}

/* Candidates, or `products` where it is not NULL. */
INLINE void screen(const keys_t *keys, const queries_t *queries, candidates_t *candidates, const products_t *products,
                   int64_t begin, int64_t end, multiply_t *multiply) {
    const int64_t columns = queries->count * queries->columns;
    sums_t sums;
    for (int64_t g = begin; g < end; g++) {
        if (!present(keys, g)) continue;
        for (int64_t column = 0; column < columns; column += TILE) {
            const int64_t own = columns - column < TILE ? columns - column : TILE;
            multiply(keys->codes + g * keys->words * ROWS * 4, queries->codes + column * keys->words * 4, keys->words,
                     own, sums);
            for (int64_t j = 0; j < own; j += queries->columns) {
                const int64_t q = (column + j) / queries->columns;
                if (products)
                    write_group(keys, queries, products, g, q, (const int32_t(*)[ROWS])sums + j);
                else
                    judge_group(keys, queries, candidates, g, q, (const int32_t(*)[ROWS])sums + j);
            }
        }
    }
}

static void screen_portable(const keys_t *keys, const queries_t *queries, candidates_t *candidates,
                            const products_t *products, int64_t begin, int64_t end) {
    screen(keys, queries, candidates, products, begin, end, multiply_portable);
}

#ifdef X86

/* ---- AVX2: two bytes of a row are multiplied and added up in 16 bits, which holds them (dualform_greatest) ---- */

AVX2 INLINE __m256i two_rows_of_four(__m256i sum, __m256i key, __m256i query) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(key, query), _mm256_set1_epi16(1)));
}

/* `count` (a constant) of the queries. */
AVX2 INLINE void multiply_few(const uint8_t *key, const int8_t *query, int64_t words, const int count, sums_t sums) {
    __m256i left[4], right[4];
    for (int q = 0; q < count; q++) left[q] = right[q] = _mm256_setzero_si256();
    for (int64_t w = 0; w < words; w++) {
        if (count > 1) FETCH(key, (words + w) * ROWS * 4); /* with one, the processor foresees the stream by itself */
        const __m256i a = _mm256_loadu_si256((const __m256i *)(key + w * ROWS * 4));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(key + w * ROWS * 4 + ROWS * 2));
        for (int q = 0; q < count; q++) {
            int32_t four;
            memcpy(&four, query + (w * TILE + q) * 4, 4);
            const __m256i own = _mm256_set1_epi32(four);
            left[q] = two_rows_of_four(left[q], a, own);
            right[q] = two_rows_of_four(right[q], b, own);
        }
    }
    for (int q = 0; q < count; q++) {
        _mm256_storeu_si256((__m256i *)sums[q], left[q]);
        _mm256_storeu_si256((__m256i *)(sums[q] + ROWS / 2), right[q]);
    }
}

AVX2 static void multiply_avx2(const uint8_t *key, const int8_t *query, int64_t words, int64_t count, sums_t sums) {
    for (; count >= 4; count -= 4, query += 16, sums += 4) multiply_few(key, query, words, 4, sums);
    if (count == 3) multiply_few(key, query, words, 3, sums);
    if (count == 2) multiply_few(key, query, words, 2, sums);
    if (count == 1) multiply_few(key, query, words, 1, sums);
}

AVX2 static void screen_avx2(const keys_t *keys, const queries_t *queries, candidates_t *candidates,
                             const products_t *products, int64_t begin, int64_t end) {
    screen(keys, queries, candidates, products, begin, end, multiply_avx2);
}

/* ---- AVX-512 VNNI ---- */

/* Products of two groups of rows with the first queries of a tile, summed over all words. The sums have names of their
   own rather than an array, which the compiler would keep in memory. */
#define EACH1(DO) DO(0)
#define EACH2(DO) DO(0) DO(1)
#define EACH4(DO) EACH2(DO) DO(2) DO(3)
#define EACH12(DO) EACH4(DO) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#define BEGIN(q) __m512i a##q = _mm512_setzero_si512(), b##q = _mm512_setzero_si512();
#define STEP(q)                                        \
    memcpy(&four, query + (w * TILE + q) * 4, 4);      \
    own = _mm512_set1_epi32(four);                     \
    a##q = _mm512_dpbusd_epi32(a##q, left, own);       \
    b##q = _mm512_dpbusd_epi32(b##q, right, own);
#define END(q) sums[0][q] = a##q, sums[1][q] = b##q;
#define MULTIPLY(NAME, EACH)                                                                                 \
    VNNI static void NAME(const uint8_t *a, const uint8_t *b, const int8_t *query, int64_t words,            \
                          __m512i sums[2][TILE]) {                                                           \
        int32_t four;                                                                                        \
        __m512i own, left, right;                                                                            \
        EACH(BEGIN)                                                                                          \
        for (int64_t w = 0; w < words; w++) {                                                                \
            FETCH(a, (2 * words + w) * ROWS * 4);                                                            \
            FETCH(b, (2 * words + w) * ROWS * 4);                                                            \
            left = _mm512_loadu_si512(a + w * ROWS * 4);                                                     \
            right = _mm512_loadu_si512(b + w * ROWS * 4);                                                    \
            EACH(STEP)                                                                                       \
        }                                                                                                    \
        EACH(END)                                                                                            \
    }
MULTIPLY(multiply_4, EACH4)
MULTIPLY(multiply_12, EACH12)

/* Products of one group with one column or two. Reading the keys takes longer than so few products, and is fastest in
   one stream, from group to group. The processor foresees that stream by itself while one column is all there is to do;
   beside two it is too slow, unless the group that comes next is fetched. */
#define BEGIN_ONE(q) __m512i even##q = _mm512_setzero_si512(), odd##q = _mm512_setzero_si512();
#define STEP_ONE(sum, w, q)                                                                                    \
    memcpy(&four, query + ((w) * TILE + q) * 4, 4);                                                            \
    sum##q = _mm512_dpbusd_epi32(sum##q, _mm512_loadu_si512(key + (w) * ROWS * 4), _mm512_set1_epi32(four));
#define EVEN(q) STEP_ONE(even, w, q)
#define ODD(q) STEP_ONE(odd, w + 1, q)
#define END_ONE(q) sums[q] = _mm512_add_epi32(even##q, odd##q);
#define MULTIPLY_ONE(NAME, EACH, FETCH_NEXT)                                                                   \
    VNNI static void NAME(const uint8_t *key, const int8_t *query, int64_t words, __m512i sums[TILE]) {        \
        int32_t four;                                                                                          \
        int64_t w = 0;                                                                                         \
        EACH(BEGIN_ONE)                                                                                        \
        for (; w + 2 <= words; w += 2) {                                                                       \
            FETCH_NEXT(key, (words + w) * ROWS * 4);                                                           \
            FETCH_NEXT(key, (words + w + 1) * ROWS * 4);                                                       \
            EACH(EVEN)                                                                                         \
            EACH(ODD)                                                                                          \
        }                                                                                                      \
        if (w < words) { EACH(EVEN) }                                                                          \
        EACH(END_ONE)                                                                                          \
    }
#define LEAVE(from, bytes) (void)0
MULTIPLY_ONE(multiply_one_by_1, EACH1, LEAVE)
MULTIPLY_ONE(multiply_one_by_2, EACH2, FETCH)

/* Which of a group's rows count: those that there are, and that the mask leaves. */
VNNI INLINE __mmask16 rows_present(const keys_t *keys, int64_t g) {
    int64_t left = keys->rows - g * ROWS;
    __mmask16 there = left >= ROWS ? 0xFFFF : left > 0 ? (__mmask16)((1 << left) - 1) : 0;
    if (keys->group && there)
        there = _mm512_mask_cmpge_epi32_mask(there, _mm512_maskz_loadu_epi32(there, keys->group + keys->first + g * ROWS),
                                             _mm512_setzero_si512());
    return there;
}

/* As bound_group. */
VNNI INLINE void bound(const keys_t *keys, const queries_t *queries, int64_t g, int64_t q, const __m512i sums[],
                       __m512 *score, __m512 *error) {
    int64_t row = g * ROWS;
    __m512 low = _mm512_loadu_ps(keys->low + row), scale = _mm512_loadu_ps(keys->scale + row);
    *score = _mm512_mul_ps(low, _mm512_set1_ps(queries->sum[q]));
    *score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_mul_ps(scale, _mm512_set1_ps(queries->scale[q])), *score);
    if (queries->columns == 2)
        *score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[1]), _mm512_mul_ps(scale, _mm512_set1_ps(queries->fine[q])), *score);
    *error = _mm512_mul_ps(_mm512_loadu_ps(keys->residual + row), _mm512_set1_ps(queries->length[q]));
    *error = _mm512_fmadd_ps(_mm512_loadu_ps(keys->length + row), _mm512_set1_ps(queries->residual[q]), *error);
    *error = _mm512_fmadd_ps(_mm512_abs_ps(low), _mm512_set1_ps(queries->slack[q]), *error);
}

/* As write_group. */
VNNI INLINE void write_rows(const keys_t *keys, const queries_t *queries, const products_t *products, int64_t g, int64_t q,
                       __mmask16 there, const __m512i sums[]) {
    const int64_t at = keys->first + g * ROWS;
    __m512 score, error;
    bound(keys, queries, g, q, sums, &score, &error);
    const __m512 factor =
        _mm512_mul_ps(_mm512_maskz_loadu_ps(there, products->of_row + at), _mm512_set1_ps(products->of_query[q]));
    error = _mm512_fmadd_ps(_mm512_abs_ps(score), _mm512_set1_ps(FACTOR_SLACK), error);
    error = _mm512_mul_ps(error, _mm512_set1_ps(ERROR_SLACK));
    _mm512_mask_storeu_ps(products->products + q * products->apart + at, there, _mm512_mul_ps(score, factor));
    _mm512_mask_storeu_ps(products->errors + q * products->apart + at, there, _mm512_mul_ps(error, _mm512_abs_ps(factor)));
}

VNNI INLINE void judge(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t g, int64_t q,
                       __mmask16 there, const __m512i sums[]) {
    const int64_t row = g * ROWS;
    __m512 score, error;
    bound(keys, queries, g, q, sums, &score, &error);
    if (queries->absolute) score = _mm512_abs_ps(score);
    if (queries->most) {
        const int64_t at = q * queries->apart + keys->first + row;
        const __m512 most = _mm512_maskz_loadu_ps(there, queries->most + at);
        const __m512 least = _mm512_maskz_loadu_ps(there, queries->least + at);
        const __m512 size = _mm512_max_ps(_mm512_abs_ps(most), _mm512_abs_ps(least));
        const __m512 wide = _mm512_add_ps(_mm512_abs_ps(score), error);
        __m512 off = _mm512_fmadd_ps(size, _mm512_set1_ps(FACTOR_SLACK), _mm512_set1_ps(FACTOR_TINY));
        if (queries->spread) off = _mm512_add_ps(off, _mm512_maskz_loadu_ps(there, queries->spread + at));
        error = _mm512_fmadd_ps(error, size, _mm512_fmadd_ps(wide, off, _mm512_set1_ps(PRODUCT_TINY)));
        score = _mm512_max_ps(_mm512_mul_ps(score, most), _mm512_mul_ps(score, least));
    }
    __m512 high = _mm512_add_ps(score, error), floor;
    if (candidates->groups == 1)
        floor = _mm512_set1_ps(candidates->floors[q]);
    else
        floor = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there,
                                         _mm512_maskz_loadu_epi32(there, keys->group + keys->first + row),
                                         candidates->floors + q * candidates->groups, 4);
    /* "Not less than" also keeps what is not a number, so that it is scored exactly. */
    __mmask16 reach = _mm512_mask_cmp_ps_mask(there, high, floor, _CMP_NLT_UQ);
    if (!reach) return;
    float highs[ROWS], lows[ROWS];
    _mm512_storeu_ps(highs, high);
    _mm512_storeu_ps(lows, _mm512_sub_ps(score, error));
    for (; reach; reach &= reach - 1) {
        int r = __builtin_ctz(reach);
        dualform_offer(candidates, keys->group, q, keys->first + row + r, lows[r], highs[r]);
    }
}

VNNI static void screen_vnni(const keys_t *keys, const queries_t *queries, candidates_t *candidates,
                             const products_t *products, int64_t begin, int64_t end) {
    const int64_t stride = keys->words * ROWS * 4, columns = queries->count * queries->columns;
    for (int64_t g = begin; g < end; g += 2) {
        const __mmask16 there[2] = {rows_present(keys, g), g + 1 < end ? rows_present(keys, g + 1) : 0};
        if (!there[0] && !there[1]) continue;
        /* A group without a row to offer is not read. */
        const uint8_t *a = keys->codes + (there[0] ? g : g + 1) * stride, *b = keys->codes + (there[1] ? g + 1 : g) * stride;
        for (int64_t column = 0; column < columns; column += TILE) {
            const int8_t *query = queries->codes + column * keys->words * 4;
            const int64_t own = columns - column < TILE ? columns - column : TILE;
            __m512i sums[2][TILE];
            if (own <= 2)
                for (int i = 0; i < 2; i++) {
                    if (!there[i]) continue;
                    (own == 1 ? multiply_one_by_1 : multiply_one_by_2)(i ? b : a, query, keys->words, sums[i]);
                }
            else
                (own <= 4 ? multiply_4 : multiply_12)(a, b, query, keys->words, sums);
            for (int i = 0; i < 2; i++)
                for (int64_t j = 0; there[i] && j < own; j += queries->columns) {
                    const int64_t q = (column + j) / queries->columns;
                    if (products)
                        write_rows(keys, queries, products, g + i, q, there[i], sums[i] + j);
                    else
                        judge(keys, queries, candidates, g + i, q, there[i], sums[i] + j);
                }
        }
    }
}
#endif

/* Groups of rows begin to end of a segment. */
void dualform_screen(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t begin,
                     int64_t end) {
    CALL(screen, keys, queries, candidates, NULL, begin, end);
}

/* The products of the same rows. */
void dualform_products(const keys_t *keys, const queries_t *queries, const products_t *products, int64_t begin,
                       int64_t end) {
    CALL(screen, keys, queries, NULL, products, begin, end);
}
