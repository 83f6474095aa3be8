package fair

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// event is something that happens at a time of the simulated clock.
type event struct {
	at    float64
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(a, b int) bool {
	return e[a].at < e[b].at || e[a].at == e[b].at && e[a].order < e[b].order
}
func (e events) Swap(a, b int) { e[a], e[b] = e[b], e[a] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// world is a server with places, and callers with clients that ask again as soon as they are answered.
type world struct {
	now    float64
	order  int
	coming events
	queue  *Queue[string]
	random *rand.Rand
	served map[string]int
	denied map[string]int
	spread float64 // of the times that the server takes; 0: all the same
}

func (w *world) service() float64 { return serviceS * (1 + w.spread*(w.random.Float64()-0.5)) }

func (w *world) after(delay float64, do func()) {
	w.order++
	heap.Push(&w.coming, event{w.now + delay, w.order, do})
}

const (
	serviceS = 0.05  // on average
	backoffS = 0.02  // of who was refused
	turnS    = 0.001 // from an answer to the next request
)

func (w *world) client(name string) {
	w.queue.Ask(w.clock(), name, func(outcome Outcome) {
		if outcome == Refused {
			w.denied[name]++
			w.after(backoffS, func() { w.client(name) })
			return
		}
		w.after(w.service(), func() {
			w.served[name]++
			w.queue.Done(w.clock(), name)
			w.after(turnS, func() { w.client(name) })
		})
	})
}

func (w *world) clock() time.Duration { return time.Duration(w.now * float64(time.Second)) }

// fill is what a timer does.
func (w *world) fill() {
	w.queue.Fill(w.clock())
	w.after(Window.Seconds()/4, w.fill)
}

// run returns how many requests each caller has had answered in a time; clients by caller.
func run(places, most int, spread float64, clients map[string]int, seconds float64) *world {
	w := &world{queue: New[string](places, most), random: rand.New(rand.NewPCG(1, 2)), served: map[string]int{}, denied: map[string]int{}, spread: spread}
	w.fill()
	for _, name := range []string{"a", "b", "c", "greedy"} {
		for range clients[name] {
			w.client(name)
		}
	}
	for w.coming.Len() > 0 {
		next := heap.Pop(&w.coming).(event)
		if next.at > seconds {
			break
		}
		w.now = next.at
		next.do()
	}
	return w
}

func TestAGreedyCallerLeavesTheOthersWhatTheyHad(t *testing.T) {
	for _, spread := range []float64{0, 0.1, 1} {
		before := run(32, 100, spread, map[string]int{"a": 6, "b": 4, "c": 2}, 60)
		behind := run(32, 100, spread, map[string]int{"a": 6, "b": 4, "c": 2, "greedy": 320}, 60)
		all := 0
		for _, name := range []string{"a", "b", "c"} {
			all += behind.served[name]
			if kept := float64(behind.served[name]) / float64(before.served[name]); kept < 0.97 || behind.denied[name] > 0 {
				t.Errorf("%.1f: %s keeps %.3f, and was refused %d times", spread, name, kept, behind.denied[name])
			}
		}
		if used := float64(all+behind.served["greedy"]) / (32 / serviceS * 60); used < 0.95 {
			t.Errorf("%.1f: of the places %.3f are used", spread, used)
		}
	}
}

func TestPlacesAreSharedByMaxMinFairness(t *testing.T) {
	w := run(24, 400, 1, map[string]int{"a": 2, "b": 100, "c": 100, "greedy": 100}, 60)
	all := float64(w.served["a"] + w.served["b"] + w.served["c"] + w.served["greedy"])
	for name, want := range map[string]float64{"a": 2.0 / 24, "b": 22.0 / 72, "c": 22.0 / 72, "greedy": 22.0 / 72} {
		if got := float64(w.served[name]) / all; got < 0.93*want || got > 1.07*want {
			t.Errorf("%s has %.3f, not %.3f", name, got, want)
		}
	}
}

func TestPlacesOfWhoIsGoneAreFreeSoon(t *testing.T) {
	q := New[string](4, 9)
	count := map[string]int{}
	ask := func(now time.Duration, name string) {
		q.Ask(now, name, func(Outcome) { count[name]++ })
	}
	for range 2 {
		ask(0, "a")
	}
	for range 4 {
		ask(0, "greedy")
	}
	q.Done(0, "a")
	q.Done(0, "a")
	if count["greedy"] != 2 || !q.Holds() {
		t.Errorf("%v", count)
	}
	ask(Window/2, "a") // it has come back
	q.Done(Window/2, "a")
	if q.Fill(2*Window - 1); count["greedy"] != 2 {
		t.Errorf("%v", count)
	}
	if q.Fill(3 * Window); count["greedy"] != 4 || q.Holds() {
		t.Errorf("%v", count)
	}
}

func TestNobodyIsForgottenAndNothingIsHeldForLong(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		q := New[int](1+random.IntN(4), random.IntN(6))
		var inside []int
		waiting := map[*Ticket[int]]bool{}
		told := map[uint64]int{}
		now := time.Duration(0)
		for range 300 {
			now += time.Duration(random.IntN(int(Window)))
			switch choice := random.IntN(3); {
			case choice == 0 || len(inside) == 0:
				key, number := random.IntN(4), q.number+1
				ticket := q.Ask(now, key, func(outcome Outcome) {
					told[number]++
					if outcome == In {
						inside = append(inside, key)
					}
				})
				if told[number] == 0 {
					waiting[ticket] = true
				}
			case choice == 1:
				at := random.IntN(len(inside))
				key := inside[at]
				inside = append(inside[:at], inside[at+1:]...)
				q.Done(now, key)
			default:
				for ticket := range waiting {
					wasWaiting := told[ticket.number] == 0
					if q.GiveUp(ticket) != wasWaiting {
						t.Fatal("GiveUp disagrees with the ticket's state")
					}
					told[ticket.number]++
					delete(waiting, ticket)
					break
				}
			}
			if q.inside != len(inside) || q.inside > q.places || q.waiting > q.most {
				t.Fatalf("%d of %d inside (%d known), %d of %d wait", q.inside, q.places, len(inside), q.waiting, q.most)
			}
		}
		for len(inside) > 0 {
			key := inside[0]
			inside = inside[1:]
			q.Done(now, key)
			now += 2 * Window
			if q.Fill(now); q.Holds() {
				t.Fatalf("%d of %d inside, and %d wait", q.inside, q.places, q.waiting)
			}
		}
		q.sweepAt = 0
		if q.sweep(now + 2*Window); q.waiting != 0 || len(q.callers) != 0 {
			t.Fatalf("%d wait, %d callers are kept", q.waiting, len(q.callers))
		}
		for number, count := range told {
			if count != 1 && !(count == 2) { // admitted or refused, and then given up without effect
				t.Fatalf("%d was answered %d times", number, count)
			}
		}
	}
}

func TestWhoHasMostOfTheQueueIsRefused(t *testing.T) {
	q := New[string](1, 2)
	now := time.Duration(0)
	told := ""
	ask := func(name string) {
		q.Ask(now, name, func(outcome Outcome) { told += fmt.Sprint(name, outcome, " ") })
	}
	for _, name := range []string{"a", "a", "a", "b", "a"} {
		ask(name)
	}
	if told != "a0 a1 a1 " { // the third of a has to go for b, and its next one is one too many
		t.Errorf("%q", told)
	}
	q.Done(now, "a")
	if told != "a0 a1 a1 a0 " {
		t.Errorf("%q", told)
	}
}
