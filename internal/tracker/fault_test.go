package tracker_test

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

// deaf is a share whose tracker is dead to the others from some time on.
type deaf struct {
	tracker.Share
	dead atomic.Bool
}

func (s *deaf) Beat(ctx context.Context) (bool, error) {
	if s.dead.Load() {
		return false, errors.New("dead")
	}
	return s.Share.Beat(ctx)
}

// stuck is a ledger that gets nothing done.
type stuck struct{ tracker.Ledger }

func (stuck) Apply(context.Context, []usage.Key) ([]usage.Applied, error) {
	return nil, errors.New("stuck")
}
