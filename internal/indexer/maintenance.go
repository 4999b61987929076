package indexer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/history"
)

// MaintenanceOptions change what Maintenance does. The zero value keeps minutes
// for good.
type MaintenanceOptions struct {
	// Every is the pause between two rounds, overriding the default 1 min.
	Every time.Duration
	// KeepMinutes is how long usage is kept by the minute, overriding the default of
	// for good. Hours and days stay. Whole days (UTC) are dropped, so the last of
	// them lives up to a day longer.
	KeepMinutes time.Duration
	// Log says what was done, overriding the default of silence.
	Log *slog.Logger
	// Registerer takes the metrics, overriding the default of none.
	Registerer prometheus.Registerer
}

// aheadDays is for how many days room is made before they begin.
const aheadDays = 3

// Maintenance rolls minutes up to hours and days, makes room for the days to come
// and drops minutes that are too old. Several may run on one history.
type Maintenance struct {
	store *history.Store
	opts  MaintenanceOptions

	rolled, dropped, failures prometheus.Counter
	lastSuccess               prometheus.Gauge
}

// NewMaintenance returns a Maintenance that is ready to Run.
func NewMaintenance(store *history.Store, opts MaintenanceOptions) *Maintenance {
	if opts.Every <= 0 {
		opts.Every = time.Minute
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tallygate_indexer_" + name, Help: help})
	}
	m := &Maintenance{
		store: store, opts: opts,
		rolled:   counter("rollups_total", "Hours and days made from finer rows."),
		dropped:  counter("drops_total", "Days whose minutes were dropped by retention."),
		failures: counter("maintenance_failures_total", "Rounds of maintenance that failed; each is made again."),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tallygate_indexer_maintenance_last_success_timestamp_seconds",
			Help: "When a round of maintenance last went well.",
		}),
	}
	if opts.Registerer != nil {
		tooLate := prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tallygate_indexer_too_late_total", Help: "Records that came for minutes already dropped; their units are not in the history.",
		}, func() float64 { return float64(store.TooLate()) })
		opts.Registerer.MustRegister(m.rolled, m.dropped, m.failures, m.lastSuccess, tooLate)
	}
	return m
}

// Run makes a round at once and then regularly until ctx ends. A round that fails
// is logged and made again: queries are exact without it, only slower.
func (m *Maintenance) Run(ctx context.Context) error {
	tick := time.NewTicker(m.opts.Every)
	defer tick.Stop()
	for {
		if err := m.runOnce(ctx, time.Now()); err != nil && !errors.Is(err, ctx.Err()) {
			m.failures.Inc()
			m.opts.Log.Error("maintenance of the history failed, it will be tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (m *Maintenance) runOnce(ctx context.Context, now time.Time) error {
	if err := m.store.MakeRoom(ctx, now, aheadDays); err != nil {
		return err
	}
	if err := m.store.ForgetErasures(ctx, now); err != nil {
		return err
	}
	hours, days, err := m.store.Rollup(ctx, now)
	m.rolled.Add(float64(hours + days))
	if err != nil {
		return err
	}
	var dropped int
	if m.opts.KeepMinutes > 0 {
		dropped, err = m.store.DropMinutes(ctx, now.Add(-m.opts.KeepMinutes))
		m.dropped.Add(float64(dropped))
		if err != nil {
			return err
		}
	}
	if hours+days+dropped > 0 {
		m.opts.Log.Info("maintained the history", "hours", hours, "days", days, "dropped_days", dropped)
	}
	m.lastSuccess.Set(float64(now.Unix()))
	return nil
}
