package memory_test

import (
	"context"
	"testing"

	"github.com/tallygate/tallygate/internal/memory"
	"github.com/tallygate/tallygate/internal/quota/quotatest"
	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestConformance(t *testing.T) {
	quotatest.Run(t, func(t *testing.T, clock *quotatest.Clock) quotatest.Subject {
		s := memory.New(memory.Options{Now: clock.UnixMilli})
		return quotatest.Subject{Store: s, Counted: func(id token.ID, resource string, minute int64) quotatest.Counted {
			records, err := s.Apply(context.Background(), []usage.Key{{Token: id, Resource: resource, Minute: minute}})
			if err != nil {
				t.Fatal(err)
			}
			if len(records) == 0 {
				return quotatest.Counted{}
			}
			return quotatest.Counted{Admitted: records[0].Admitted, Rejected: records[0].Rejected, Refunded: records[0].Refunded}
		}}
	})
}
