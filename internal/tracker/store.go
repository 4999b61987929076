package tracker

import (
	"context"

	"github.com/tallygate/tallygate/internal/usage"
)

// Feed tells which counters changed. It is allowed to lose changes as long as it
// says so.
type Feed interface {
	// Watch calls changed for each counter that changed, and resync whenever
	// changes may have been missed: once at the start, as soon as changes are
	// being delivered, and after every reconnect, topology change or overflow.
	// Neither function blocks. Watch returns nil when ctx ended, and an error
	// only for what retrying cannot mend.
	Watch(ctx context.Context, changed func(usage.Key), resync func()) error
}

// Ledger is where counters are turned into an account. A foreign counter of
// minute-of-hour m belongs to the default resource and to the epoch minute
// nearest to now whose minute-of-hour is m.
type Ledger interface {
	// Apply accounts for what the counters of the given cells hold now, each token
	// atomically: metadata, series and the applied marks move together. It returns
	// one record per cell with absolute totals, whether they moved or not, except
	// for cells that have no counter and never had. Applying twice changes
	// nothing. Beside an error it returns what was applied all the same; the other
	// cells have to be applied again.
	Apply(ctx context.Context, cells []usage.Key) ([]usage.Applied, error)
	// Scan calls found with every cell that has a counter in grace, in portions,
	// perhaps from several goroutines at once.
	// It takes its time, so as not to hurt the store.
	Scan(ctx context.Context, found func([]usage.Key)) error
}
