package quota_test

import (
	"testing"

	"github.com/tallygate/tallygate/internal/quota/quotatest"
)

func TestConformance(t *testing.T) {
	quotatest.Run(t, func(_ *testing.T, clock *quotatest.Clock) quotatest.Subject {
		oracle := &quotatest.Oracle{Clock: clock}
		return quotatest.Subject{Store: oracle, Counted: oracle.Counted}
	})
}
