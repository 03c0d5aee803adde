/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * XRC SRQs by number. A number is 20 bits of table index, handed out in turn, and 4 bits that count
 * how often the index was; pages of the table that were never used cost no memory. Readers are
 * workers under QSBR; only the control thread adds and removes.
 */
#include <errno.h>
#include <stdlib.h>

#include <urcu-qsbr.h>

#include "object.h"

#define XRC_INDEX_BITS 20
#define XRC_COUNT (1u << XRC_INDEX_BITS)
#define XRC_INDEX(number) ((number) & (XRC_COUNT - 1))

struct xrc_table {
	struct srq **srq;    /* XRC_COUNT of them, by index; 0 is never used */
	uint8_t *generation; /* of each index */
	uint32_t next;	     /* index to try first */
	uint32_t count;	     /* SRQs in the table */
};

struct xrc_table *xrc_table_create(void)
{
	struct xrc_table *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	t->srq = calloc(XRC_COUNT, sizeof(struct srq *));
	t->generation = calloc(XRC_COUNT, sizeof(*t->generation));
	t->next = 1;
	if (t->srq && t->generation)
		return t;
	xrc_table_destroy(t);
	return NULL;
}

void xrc_table_destroy(struct xrc_table *t)
{
	if (!t)
		return;
	free(t->srq);
	free(t->generation);
	free(t);
}

int xrc_table_add(struct xrc_table *t, struct srq *srq)
{
	uint32_t index = t->next;

	if (t->count == XRC_COUNT - 1)
		return -ENOMEM;
	while (index == 0 || t->srq[index])
		index = XRC_INDEX(index + 1);
	t->next = XRC_INDEX(index + 1);
	t->count++;
	srq->number = (uint32_t)(t->generation[index]++ & 0xf) << XRC_INDEX_BITS | index;
	rcu_assign_pointer(t->srq[index], srq);
	return 0;
}

void xrc_table_remove(struct xrc_table *t, struct srq *srq)
{
	rcu_assign_pointer(t->srq[XRC_INDEX(srq->number)], NULL);
	t->count--;
}

struct srq *xrc_table_find(const struct xrc_table *t, uint32_t number)
{
	struct srq *srq = rcu_dereference(t->srq[XRC_INDEX(number)]);

	return srq && srq->number == number ? srq : NULL;
}
