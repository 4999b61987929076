package tracker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/counters"
	"github.com/tallygate/tallygate/internal/resptest"
	"github.com/tallygate/tallygate/internal/timeseries"
	"github.com/tallygate/tallygate/internal/tracker"
	"github.com/tallygate/tallygate/internal/usage"
)

// The account and the series move in one script, whichever way series are kept.
func TestTheApplyScriptKeepsSeriesInRedisTimeSeries(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: resptest.Live(t)})
	defer client.Close()
	series, err := timeseries.Choose(t.Context(), client, "api")
	if err != nil {
		t.Fatal(err)
	}
	ledger := tracker.NewRedisLedger(client, tracker.RedisOptions{Series: series, Log: quiet})
	cell := usage.Key{Token: "t", Resource: "search", Minute: time.Now().Unix()/60 - 1}
	key := counters.DefaultNamespace.Usage(cell.Token, cell.Resource, cell.Minute)
	for range 2 {
		if err := client.IncrBy(t.Context(), key, 5).Err(); err != nil {
			t.Fatal(err)
		}
		for range 2 { // applying twice changes nothing
			if _, err := ledger.Apply(t.Context(), []usage.Key{cell}); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := series.Points(t.Context(), cell.Token, cell.Resource, cell.Minute-10, cell.Minute+10)
	if want := []timeseries.Point{{Minute: cell.Minute, Admitted: 10}}; !slices.Equal(got, want) || err != nil {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if kind := client.Type(t.Context(), timeseries.Key("api", cell.Token, cell.Resource)+":admitted").Val(); kind != "TSDB-TYPE" {
		t.Errorf("the series is a %s", kind)
	}
}
