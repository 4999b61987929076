package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/quota"
)

// Classic decides as an application does that follows the classic recipe and has
// never heard of an enforcer:
//
//	GET {api:T}:<minute of the hour>
//	below the threshold:  MULTI, INCR, EXPIRE 59, EXEC
//
// Between GET and INCR others may increment, so the threshold may be exceeded by
// up to one request per concurrent caller: that is the recipe's, not ours. It is
// safe for concurrent use.
type Classic struct {
	client    redis.UniversalClient
	namespace string
	threshold int64 // requests per minute
	now       func() time.Time
}

// NewClassic returns a decider over client, which must not retry (MaxRetries -1):
// an INCR whose answer got lost must not be sent again.
func NewClassic(client redis.UniversalClient, namespace string, threshold int64) *Classic {
	return &Classic{client: client, namespace: namespace, threshold: threshold, now: time.Now}
}

// Decide implements Decider. Resource and policy mean nothing to the recipe, and a
// cost above 1 is that many increments in one transaction.
func (c *Classic) Decide(ctx context.Context, r Request) (Answer, error) {
	now := c.now()
	key := "{" + c.namespace + ":" + r.Token + "}:" + strconv.Itoa(now.Minute())
	count, err := c.client.Get(ctx, key).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return Answer{}, fmt.Errorf("%w: GET: %w", ErrNotCounted, withoutPorts(err))
	}
	if count+r.Cost > c.threshold {
		return Answer{Outcome: quota.Rejected, At: now.UnixMilli()}, nil
	}
	_, err = c.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for range r.Cost {
			p.Incr(ctx, key)
		}
		p.Expire(ctx, key, 59*time.Second)
		return nil
	})
	if err != nil {
		op, isNet := errors.AsType[*net.OpError](err)
		_, refused := errors.AsType[redis.Error](err) // the server's word: EXECABORT, NOPERM, READONLY, OOM
		if refused || (isNet && op.Op == "dial") {
			return Answer{}, fmt.Errorf("%w: MULTI: %w", ErrNotCounted, withoutPorts(err))
		}
		return Answer{}, fmt.Errorf("MULTI: %w", withoutPorts(err))
	}
	return Answer{Outcome: quota.Admitted, At: now.UnixMilli()}, nil
}
