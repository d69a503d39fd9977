/* Which rows can be among the k best, by their codes alone: see query/search/screen.py. */

#include "kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Move the k greatest of `count` numbers to the front and return the least of them (Hoare's selection). */
static float select_greatest(float *numbers, int64_t count, int64_t k) {
    for (int64_t first = 0, last = count - 1; first < last;) {
        float pivot = numbers[first + (last - first) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (numbers[i] > pivot) i++;
            while (numbers[j] < pivot) j--;
            if (i <= j) {
                float other = numbers[i];
                numbers[i++] = numbers[j];
                numbers[j--] = other;
            }
        }
        if (k - 1 <= j)
            last = j;
        else if (k - 1 >= i)
            first = i;
        else
            break;
    }
    float least = numbers[0];
    for (int64_t i = 1; i < k; i++) least = numbers[i] < least ? numbers[i] : least;
    return least;
}

/* Note a lower bound. The floor rises once k more are held: raising it each time would cost more than it saves. */
static void hold(candidates_t *candidates, int64_t cell, float low) {
    const int64_t k = candidates->k;
    float *best = candidates->best + cell * 2 * k;
    if (!(low >= candidates->floors[cell])) return;
    best[candidates->held[cell]++] = low;
    if (candidates->held[cell] == 2 * k || (candidates->held[cell] == k && candidates->floors[cell] == -INFINITY)) {
        candidates->floors[cell] = select_greatest(best, candidates->held[cell], k);
        candidates->held[cell] = k;
    }
}

/* Forget the rows that the floors have passed. */
static void tidy(candidates_t *candidates, const int32_t *group_of, int64_t query) {
    int64_t *rows = candidates->rows + query * candidates->capacity, kept = 0;
    float *high = candidates->high + query * candidates->capacity;
    float *floors = candidates->floors + query * candidates->groups;
    for (int64_t i = 0; i < candidates->counts[query]; i++) {
        if (high[i] < floors[group_of ? group_of[rows[i]] : 0]) continue;
        rows[kept] = rows[i];
        high[kept++] = high[i];
    }
    candidates->counts[query] = kept;
}

static void offer(candidates_t *candidates, const int32_t *group_of, int64_t query, int64_t row, float low,
                  float high) {
    if (candidates->crowded[query]) return;
    int64_t cell = query * candidates->groups + (group_of ? group_of[row] : 0);
    if (high < candidates->floors[cell]) return; /* the floor rose since the caller looked */
    if (candidates->counts[query] == candidates->capacity) {
        tidy(candidates, group_of, query);
        if (candidates->counts[query] > candidates->capacity / 2) candidates->crowded[query] = 1;
        if (candidates->crowded[query]) return;
    }
    int64_t at = query * candidates->capacity + candidates->counts[query]++;
    candidates->rows[at] = row;
    candidates->high[at] = high;
    hold(candidates, cell, low);
}

/* Rows of `keys` are numbered from the start of the layer; so is `group_of`. */
static const int32_t *group_of_layer(const keys_t *keys) { return keys->group ? keys->group - keys->first : 0; }

INLINE int32_t dot(const uint8_t *key, const int8_t *query, int64_t words) {
    int32_t sum = 0;
    for (int64_t w = 0; w < words; w++)
        for (int i = 0; i < 4; i++) sum += (int32_t)key[w * ROWS * 4 + i] * query[w * TILE * 4 + i];
    return sum;
}

/* The plain form: any processor, and what the fast one is tested against. */
static void screen_plain(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t begin,
                         int64_t end) {
    for (int64_t row = begin * ROWS; row < end * ROWS && row < keys->rows; row++) {
        if (keys->group && keys->group[row] < 0) continue;
        const uint8_t *key = keys->codes + (row / ROWS) * keys->words * ROWS * 4 + (row % ROWS) * 4;
        for (int64_t q = 0; q < queries->count; q++) {
            float score = keys->low[row] * queries->sum[q];
            for (int64_t c = 0; c < queries->columns; c++) {
                const int64_t column = q * queries->columns + c;
                const int8_t *query = queries->codes + (column / TILE) * keys->words * TILE * 4 + (column % TILE) * 4;
                score += (float)dot(key, query, keys->words) *
                         (keys->scale[row] * (c ? queries->fine[q] : queries->scale[q]));
            }
            const float error = keys->residual[row] * queries->length[q] + keys->length[row] * queries->residual[q] +
                                fabsf(keys->low[row]) * queries->slack[q];
            if (queries->absolute) score = fabsf(score);
            offer(candidates, group_of_layer(keys), q, keys->first + row, score - error, score + error);
        }
    }
}

#ifdef VNNI

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
            left = _mm512_loadu_si512(a + w * ROWS * 4);                                                     \
            right = _mm512_loadu_si512(b + w * ROWS * 4);                                                    \
            EACH(STEP)                                                                                       \
        }                                                                                                    \
        EACH(END)                                                                                            \
    }
MULTIPLY(multiply_1, EACH1)
MULTIPLY(multiply_2, EACH2)
MULTIPLY(multiply_4, EACH4)
MULTIPLY(multiply_12, EACH12)

/* Which of a group's rows count: those that there are, and that the mask leaves. */
VNNI INLINE __mmask16 present(const keys_t *keys, int64_t g) {
    int64_t left = keys->rows - g * ROWS;
    __mmask16 there = left >= ROWS ? 0xFFFF : left > 0 ? (__mmask16)((1 << left) - 1) : 0;
    if (keys->group && there)
        there = _mm512_mask_cmpge_epi32_mask(there, _mm512_maskz_loadu_epi32(there, keys->group + g * ROWS),
                                             _mm512_setzero_si512());
    return there;
}

VNNI INLINE void judge(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t g, int64_t q,
                       __mmask16 there, const __m512i sums[]) {
    int64_t row = g * ROWS;
    __m512 low = _mm512_loadu_ps(keys->low + row), scale = _mm512_loadu_ps(keys->scale + row);
    __m512 score = _mm512_mul_ps(low, _mm512_set1_ps(queries->sum[q]));
    score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0]), _mm512_mul_ps(scale, _mm512_set1_ps(queries->scale[q])), score);
    if (queries->columns == 2)
        score = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[1]), _mm512_mul_ps(scale, _mm512_set1_ps(queries->fine[q])), score);
    __m512 error = _mm512_mul_ps(_mm512_loadu_ps(keys->residual + row), _mm512_set1_ps(queries->length[q]));
    error = _mm512_fmadd_ps(_mm512_loadu_ps(keys->length + row), _mm512_set1_ps(queries->residual[q]), error);
    error = _mm512_fmadd_ps(_mm512_abs_ps(low), _mm512_set1_ps(queries->slack[q]), error);
    if (queries->absolute) score = _mm512_abs_ps(score);
    __m512 high = _mm512_add_ps(score, error), floor;
    if (candidates->groups == 1)
        floor = _mm512_set1_ps(candidates->floors[q]);
    else
        floor = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there,
                                         _mm512_maskz_loadu_epi32(there, keys->group + row),
                                         candidates->floors + q * candidates->groups, 4);
    /* "Not less than" also keeps what is not a number, so that it is scored exactly. */
    __mmask16 reach = _mm512_mask_cmp_ps_mask(there, high, floor, _CMP_NLT_UQ);
    if (!reach) return;
    float highs[ROWS], lows[ROWS];
    _mm512_storeu_ps(highs, high);
    _mm512_storeu_ps(lows, _mm512_sub_ps(score, error));
    for (; reach; reach &= reach - 1) {
        int r = __builtin_ctz(reach);
        offer(candidates, group_of_layer(keys), q, keys->first + row + r, lows[r], highs[r]);
    }
}

VNNI static void screen_vnni(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t begin,
                             int64_t end) {
    const int64_t stride = keys->words * ROWS * 4, columns = queries->count * queries->columns;
    for (int64_t g = begin; g < end; g += 2) {
        const __mmask16 there[2] = {present(keys, g), g + 1 < end ? present(keys, g + 1) : 0};
        if (!there[0] && !there[1]) continue;
        /* A group without a row to offer is not read. */
        const uint8_t *a = keys->codes + (there[0] ? g : g + 1) * stride, *b = keys->codes + (there[1] ? g + 1 : g) * stride;
        for (int64_t column = 0; column < columns; column += TILE) {
            const int8_t *query = queries->codes + column * keys->words * 4;
            const int64_t own = columns - column < TILE ? columns - column : TILE;
            __m512i sums[2][TILE];
            (own == 1 ? multiply_1 : own == 2 ? multiply_2 : own <= 4 ? multiply_4 : multiply_12)(a, b, query, keys->words, sums);
            for (int i = 0; i < 2; i++)
                for (int64_t j = 0; there[i] && j < own; j += queries->columns)
                    judge(keys, queries, candidates, g + i, (column + j) / queries->columns, there[i], sums[i] + j);
        }
    }
}
#endif

/* Groups of rows begin to end of a segment. `plain` leaves the fast instructions aside. */
void dualform_screen(const keys_t *keys, const queries_t *queries, candidates_t *candidates, int64_t begin, int64_t end,
                     int32_t plain) {
#ifdef VNNI
    if (!plain && dualform_fast()) {
        screen_vnni(keys, queries, candidates, begin, end);
        return;
    }
#endif
    screen_plain(keys, queries, candidates, begin, end);
}

/* Once every worker is done: floors over the candidates of all of them, and only the rows that reach these. */
int32_t dualform_settle(candidates_t *const *workers, int64_t count, int64_t queries, const int32_t *group_of) {
    const int64_t k = workers[0]->k, groups = workers[0]->groups;
    float *all = malloc(sizeof(float) * 2 * k * count);
    if (!all) return 1;
    for (int64_t cell = 0; cell < queries * groups; cell++) {
        int64_t held = 0;
        for (int64_t w = 0; w < count; w++) {
            memcpy(all + held, workers[w]->best + cell * 2 * k, sizeof(float) * workers[w]->held[cell]);
            held += workers[w]->held[cell];
        }
        const float floor = held < k ? -INFINITY : select_greatest(all, held, k);
        for (int64_t w = 0; w < count; w++) workers[w]->floors[cell] = floor;
    }
    free(all);
    for (int64_t w = 0; w < count; w++)
        for (int64_t q = 0; q < queries; q++) tidy(workers[w], group_of, q);
    return 0;
}
