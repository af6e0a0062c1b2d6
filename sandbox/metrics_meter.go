package sandbox

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// What brokers measure with: meters and histograms as Yammer Metrics 2.2 has
// them, which Kafka's older metrics are, and the windowed statistics of Kafka's
// own metrics. None is safe for concurrent use.

// meterTick is how often a meter's moving averages move.
const meterTick = 5 * time.Second

// meter counts events and how often they come. Its zero value does not work:
// see newMeter.
type meter struct {
	start    time.Time
	count    int64
	ticked   time.Time // up to when events are in rates
	recent   int64     // events since then
	averaged bool      // rates have a first value
	rates    [3]float64
}

// meterMinutes are the spans of a meter's moving averages.
var meterMinutes = [3]float64{1, 5, 15}

func newMeter(now time.Time) *meter { return &meter{start: now, ticked: now} }

func (m *meter) mark(now time.Time, n int64) {
	m.tick(now)
	m.count += n
	m.recent += n
}

// tick moves the averages on to now.
func (m *meter) tick(now time.Time) {
	n := int64(now.Sub(m.ticked) / meterTick)
	if n <= 0 {
		return
	}
	m.ticked = m.ticked.Add(time.Duration(n) * meterTick)
	instant := float64(m.recent) / meterTick.Seconds()
	m.recent = 0
	for i, minutes := range meterMinutes {
		decay := math.Exp(-meterTick.Minutes() / minutes)
		if m.averaged {
			m.rates[i] = decay*m.rates[i] + (1-decay)*instant
		} else {
			m.rates[i] = instant
		}
		m.rates[i] *= math.Pow(decay, float64(n-1)) // ticks without an event
	}
	m.averaged = true
}

// attribute is one attribute of an MBean.
type attribute struct {
	name  string
	value float64
}

func (m *meter) attributes(now time.Time) []attribute {
	m.tick(now)
	mean := 0.0
	if d := now.Sub(m.start).Seconds(); m.count > 0 && d > 0 {
		mean = float64(m.count) / d
	}
	return []attribute{
		{"Count", float64(m.count)},
		{"MeanRate", mean},
		{"OneMinuteRate", m.rates[0]},
		{"FiveMinuteRate", m.rates[1]},
		{"FifteenMinuteRate", m.rates[2]},
	}
}

// histogramSize is how many values percentiles are of. Yammer samples so many of
// the last minutes; here they are the last ones.
const histogramSize = 1028

// histogram tells how values are distributed. The zero value is ready for use.
type histogram struct {
	count      int64
	min, max   float64
	mean, sum2 float64 // Welford's: sum2 is that of squared distances from the mean
	last       []float64
}

func (h *histogram) update(v float64) {
	if h.count == 0 {
		h.min, h.max = v, v
	}
	h.count++
	h.min, h.max = min(h.min, v), max(h.max, v)
	d := v - h.mean
	h.mean += d / float64(h.count)
	h.sum2 += d * (v - h.mean)
	if len(h.last) < histogramSize {
		h.last = append(h.last, v)
		return
	}
	h.last[(h.count-1)%histogramSize] = v
}

func (h *histogram) attributes() []attribute {
	deviation := 0.0
	if h.count > 1 {
		deviation = math.Sqrt(h.sum2 / float64(h.count-1))
	}
	out := []attribute{
		{"Count", float64(h.count)},
		{"Min", h.min},
		{"Max", h.max},
		{"Mean", h.mean},
		{"StdDev", deviation},
	}
	sorted := slices.Sorted(slices.Values(h.last))
	for _, p := range []struct {
		name string
		part float64
	}{
		{"50thPercentile", 0.50},
		{"75thPercentile", 0.75},
		{"95thPercentile", 0.95},
		{"98thPercentile", 0.98},
		{"99thPercentile", 0.99},
		{"999thPercentile", 0.999},
	} {
		out = append(out, attribute{p.name, percentile(sorted, p.part)})
	}
	return out
}

// percentile interpolates between the two values around a percentile; 0 of none.
func percentile(sorted []float64, part float64) float64 {
	at := part * float64(len(sorted)+1)
	switch below := int(at); {
	case len(sorted) == 0:
		return 0
	case below < 1:
		return sorted[0]
	case below >= len(sorted):
		return sorted[len(sorted)-1]
	default:
		return sorted[below-1] + (at-math.Floor(at))*(sorted[below]-sorted[below-1])
	}
}

// Kafka's own metrics look at the window under way and the one before
// (metrics.num.samples, metrics.sample.window.ms).
const (
	statWindow  = 30 * time.Second
	statWindows = 2
)

// windowedStat is the values of the last windows. The zero value is ready for
// use.
type windowedStat struct {
	total   int64
	windows []statSample // the oldest first
}

type statSample struct {
	start    time.Time
	count    int64
	sum, max float64
}

func (s *windowedStat) record(now time.Time, v float64) {
	s.total++
	s.drop(now)
	if n := len(s.windows); n == 0 || now.Sub(s.windows[n-1].start) >= statWindow {
		s.windows = append(s.windows, statSample{start: now})
	}
	w := &s.windows[len(s.windows)-1]
	w.count++
	w.sum += v
	w.max = max(w.max, v)
}

// drop forgets the windows that are over.
func (s *windowedStat) drop(now time.Time) {
	s.windows = slices.DeleteFunc(s.windows, func(w statSample) bool { return now.Sub(w.start) >= statWindows*statWindow })
}

// average and highest are of the last windows; NaN when nothing was recorded.
func (s *windowedStat) average(now time.Time) float64 {
	s.drop(now)
	var count int64
	var sum float64
	for _, w := range s.windows {
		count += w.count
		sum += w.sum
	}
	if count == 0 {
		return math.NaN()
	}
	return sum / float64(count)
}

func (s *windowedStat) highest(now time.Time) float64 {
	s.drop(now)
	if len(s.windows) == 0 {
		return math.NaN()
	}
	return slices.MaxFunc(s.windows, func(a, b statSample) int { return cmp.Compare(a.max, b.max) }).max
}

// rate is events a second over the last windows.
func (s *windowedStat) rate(now time.Time) float64 {
	s.drop(now)
	if len(s.windows) == 0 {
		return 0
	}
	var count int64
	for _, w := range s.windows {
		count += w.count
	}
	span := max(now.Sub(s.windows[0].start), (statWindows-1)*statWindow)
	return float64(count) / span.Seconds()
}
