package rls

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// watchEvery is the pace at which a directory is looked at.
const watchEvery = time.Second

// Source is the rules of a directory, kept up to date by Run. Its rules may be
// asked for by many goroutines at once.
type Source struct {
	dir     string
	options LoadOptions
	log     *slog.Logger
	current atomic.Pointer[Rules]
	loaded  func(ok bool) // told of every load; nil is nobody

	// Only Open and Run touch these.
	seen    []file // what was loaded or refused last
	refused string // why the last look failed; "" when it did not
}

// Open loads the rules of dir.
func Open(dir string, o LoadOptions, log *slog.Logger) (*Source, error) {
	s := &Source{dir: dir, options: o, log: log}
	if _, err := s.refresh(); err != nil {
		return nil, err
	}
	return s, nil
}

// Rules returns the rules that hold now.
func (s *Source) Rules() *Rules { return s.current.Load() }

// Run reloads the directory whenever it changed, until ctx ends. A set that is
// refused is logged once, and the rules that held before go on holding.
func (s *Source) Run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		before := s.refused
		changed, err := s.refresh()
		switch {
		case err != nil && s.refused != before:
			s.log.Error("rate limit rules refused; those loaded before hold", "error", err)
		case changed:
			s.log.Info("rate limit rules loaded", "domains", len(s.Rules().domains))
		}
	}
}

// refresh loads the directory if its files are not those that were seen last.
func (s *Source) refresh() (changed bool, err error) {
	defer func() {
		if err != nil {
			s.refused = err.Error()
		}
	}()
	files, err := list(s.dir)
	if err != nil {
		s.seen = nil // so that the same files are loaded again when they are back
		return false, err
	}
	if s.seen != nil && slices.Equal(files, s.seen) {
		return false, nil
	}
	rules, warnings, err := Load(s.dir, s.options)
	s.seen = files
	if s.loaded != nil {
		s.loaded(err == nil)
	}
	if err != nil {
		return false, err
	}
	s.refused = ""
	for _, w := range warnings {
		s.log.Warn("rate limit rules: " + w.String())
	}
	s.current.Store(rules)
	return true, nil
}
