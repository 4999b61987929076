package main

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/tallygate/tallygate/internal/enforcer"
	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

// ledger counts what passes through a tracker.Ledger: the units that were counted
// by anybody, this process and other applications on the same Redis alike.
type ledger struct {
	tracker.Ledger
	moved atomic.Int64
}

func (l *ledger) Apply(ctx context.Context, cells []usage.Key) ([]usage.Applied, error) {
	applied, err := l.Ledger.Apply(ctx, cells)
	for _, a := range applied {
		l.moved.Add(a.Moved)
	}
	return applied, err
}

// account is one run of the pipeline, seen from both ends.
type account struct {
	decided enforcer.Units // what this enforcer answered
	counted int64          // units that the counters grew by, whoever counted them
	grown   usage.Totals   // what the history grew by
	total   usage.Totals   // what the history holds
}

// takeAccount reads both ends once the pipeline between them is empty.
func takeAccount(ctx context.Context, e *enforcer.Enforcer, l *ledger, kept *history.Store, before usage.Totals) (account, error) {
	total, err := kept.Sum(ctx)
	return account{
		decided: e.Units(), counted: l.moved.Load(), total: total,
		grown: usage.Totals{
			Admitted: total.Admitted - before.Admitted, Rejected: total.Rejected - before.Rejected, Refunded: total.Refunded - before.Refunded,
		},
	}, err
}

// print says what was decided and whether the history holds exactly that. The
// error says that it does not.
func (a account) print(w io.Writer) error {
	fmt.Fprintf(w, "\nadmitted %d units, rejected %d units\n", a.decided.Admitted, a.decided.Rejected)
	grown := a.grown.Admitted + a.grown.Rejected + a.grown.Refunded
	if grown != a.counted || a.grown.Admitted < a.decided.Admitted || a.grown.Rejected < a.decided.Rejected {
		return fmt.Errorf("the history does not agree: the counters grew by %d units, the history by %d admitted, %d rejected and %d refunded; "+
			"unless another tracker works on the same Redis, this is a bug", a.counted, a.grown.Admitted, a.grown.Rejected, a.grown.Refunded)
	}
	fmt.Fprintf(w, "the history grew by exactly what was counted: %d admitted, %d rejected; it holds %d admitted and %d rejected in all\n",
		a.grown.Admitted, a.grown.Rejected, a.total.Admitted, a.total.Rejected)
	if others := grown - a.decided.Admitted - a.decided.Rejected; others > 0 {
		fmt.Fprintf(w, "%d of these units were counted by others, or for clients that left without an answer (%d units)\n", others, a.decided.Failed)
	}
	return nil
}
