package counters_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/quota/quotatest"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/token"
)

func TestConformance(t *testing.T) {
	client := redistest.Start(t).Client()
	quotatest.Run(t, func(t *testing.T, clock *quotatest.Clock) quotatest.Subject {
		return subject(t, client, clock)
	})
}

func subject(t testing.TB, client redis.UniversalClient, clock counters.Clock) quotatest.Subject {
	read := func(key string) int64 {
		n, err := client.Get(context.Background(), key).Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		return n
	}
	return quotatest.Subject{
		Store: counters.NewStore(client, counters.Options{Clock: clock}),
		Counted: func(id token.ID, resource string, minute int64) quotatest.Counted {
			return quotatest.Counted{
				Admitted: read(ns.Usage(id, resource, minute)),
				Rejected: read(ns.Rejected(id, resource, minute)),
				Refunded: read(ns.Refunded(id, resource, minute)),
			}
		},
	}
}
