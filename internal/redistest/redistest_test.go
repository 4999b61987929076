package redistest_test

import (
	"context"
	"testing"

	"github.com/tallygate/tallygate/internal/redistest"
)

func TestRestartEmptiesTheServerAtTheSameAddress(t *testing.T) {
	s := redistest.Start(t)
	ctx, client := context.Background(), s.Client()
	if err := client.Set(ctx, "k", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if n, err := client.DBSize(ctx).Result(); n != 0 || err != nil {
		t.Errorf("DBSIZE after Restart = %d, %v", n, err)
	}
}
