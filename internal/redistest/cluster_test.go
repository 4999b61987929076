package redistest_test

import (
	"fmt"
	"testing"

	"github.com/tallygate/tallygate/internal/redistest"
)

func TestClusterServesAllSlotsAlsoWhileTheyMove(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	ctx, client := t.Context(), c.Client()
	for i := range 200 {
		if err := client.Set(ctx, fmt.Sprint("k", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	moved := c.OwnedSlots(c.Nodes[0], 5)
	if len(moved) != 5 {
		t.Fatalf("node 0 has keys in slots %v", moved)
	}
	for _, slot := range moved {
		c.MoveSlot(slot, c.Nodes[0], c.Nodes[2])
	}
	for i := range 200 {
		if v, err := client.Get(ctx, fmt.Sprint("k", i)).Int(); v != i || err != nil {
			t.Errorf("k%d = %d, %v after the move", i, v, err)
		}
	}
	for _, slot := range c.OwnedSlots(c.Nodes[0], redistest.Slots) {
		for _, m := range moved {
			if slot == m {
				t.Errorf("node 0 still has keys of slot %d", slot)
			}
		}
	}
}
