package counters

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/quota"
)

// ErrUnavailable is the error of a request that the store gave no answer to.
var ErrUnavailable = errors.New("the store gave no answer")

// ErrCost is the error of a request whose cost is out of range.
var ErrCost = quota.ErrCost

// MayHaveCounted reports whether a request that failed with err may have been
// decided and counted nevertheless: the connection broke, or time ran out, after
// it was sent. To decide it again could count it twice, so the store never does;
// a caller who does chooses to.
func MayHaveCounted(err error) bool {
	var (
		reply redis.Error
		dial  *net.OpError
	)
	switch {
	case err == nil, errors.Is(err, quota.ErrCost), errors.Is(err, quota.ErrLease), errors.Is(err, errNotSent):
		return false
	case errors.As(err, &reply): // the server has refused it
		return false
	case errors.As(err, &dial) && dial.Op == "dial", errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrClosed):
		return false // it was never sent
	}
	return true
}

// errNotSent marks requests whose caller left before they were sent.
var errNotSent = errors.New("not sent")

// unavailable makes err an ErrUnavailable about n requests.
func unavailable(n int, err error) error {
	return fmt.Errorf("decide %d requests: %w: %w", n, ErrUnavailable, err)
}

func leftBeforeSent(ctx context.Context) error {
	return fmt.Errorf("decide: %w: %w", errNotSent, context.Cause(ctx))
}
