package indexer

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tallygate/tallygate/internal/history"
	"github.com/tallygate/tallygate/internal/usage"
)

func TestMaintenanceRollsUpThenDropsWhatIsTooOld(t *testing.T) {
	ctx := context.Background()
	store, err := history.Open(ctx, "sqlite:"+filepath.Join(t.TempDir(), "history.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	now := time.Date(2025, 2, 20, 12, 0, 0, 0, time.UTC)
	minute := func(t time.Time) int64 { return t.Unix() / 60 }
	old, recent := now.AddDate(0, 0, -40), now.Add(-2*time.Hour)
	err = store.Ingest(ctx, usage.Batch{Records: []usage.Record{
		{Key: usage.Key{Token: "a", Minute: minute(old)}, Totals: usage.Totals{Admitted: 3}},
		{Key: usage.Key{Token: "a", Minute: minute(recent)}, Totals: usage.Totals{Admitted: 4}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	m := NewMaintenance(store, MaintenanceOptions{KeepMinutes: 30 * 24 * time.Hour, Registerer: registry})
	if err := m.runOnce(ctx, now); err != nil {
		t.Fatal(err)
	}
	left := 0
	if err := store.Recent(ctx, 0, func(usage.Record) error { left++; return nil }); left != 1 || err != nil {
		t.Errorf("%d minutes left, %v, want the recent one", left, err)
	}
	points, err := store.Usage(ctx, "a", history.Span{From: now.AddDate(0, 0, -41), To: now, Step: 24 * time.Hour})
	var sum int64
	for _, p := range points {
		sum += p.Admitted
	}
	if sum != 7 || err != nil {
		t.Errorf("usage by day adds up to %d, %v, want 7", sum, err)
	}
	// Two hours, and the day that has ended.
	if got := testutil.ToFloat64(m.rolled); got != 3 {
		t.Errorf("rolled up %v, want 3", got)
	}
	if problems, err := testutil.GatherAndLint(registry); len(problems) > 0 || err != nil {
		t.Errorf("%v, %v", problems, err)
	}
}
