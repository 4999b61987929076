package service

import (
	"context"
	"os"
	"os/signal"
	"reflect"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tallygate/tallygate/internal/config"
)

// Reload is the part that puts changed policies into force: when the file of c
// changes, and on SIGHUP. A file that is refused is refused as a whole, and what
// was in force stays. Other settings than policies need a restart, and changing
// them is said to.
func (s *Service) Reload(c *config.Config, apply func(*config.Config)) Part {
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tallygate_policy_reloads_total", Help: "Changed configurations by outcome (applied, refused).",
	}, []string{"outcome"})
	s.Metrics.MustRegister(reloads)
	return Part{Name: "reload", Run: func(ctx context.Context) error {
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
		nudge := make(chan struct{})
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-hangup:
				}
				select {
				case <-ctx.Done():
				case nudge <- struct{}{}:
				}
			}
		}()
		return c.Watch(ctx, nudge, func(changed *config.Config, err error) {
			if err != nil {
				reloads.WithLabelValues("refused").Inc()
				s.Log.Error("the changed configuration is refused; the policies in force stay", "error", err)
				return
			}
			if !reflect.DeepEqual(c.WithoutPolicies(), changed.WithoutPolicies()) {
				s.Log.Warn("settings beside the policies have changed too; they take effect with a restart")
			}
			apply(changed)
			reloads.WithLabelValues("applied").Inc()
			s.Log.Info("policies reloaded", "policies", len(changed.Policies))
		})
	}}
}
