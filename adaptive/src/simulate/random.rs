use crate::math::{exp, ln};
use crate::simulate::Service;

/// A generator of random numbers (Vigna's xorshift64*), the same on every target.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(7_919).wrapping_add(12_345) | 1);
        for _ in 0..10 {
            random.share();
        }
        random
    }

    /// Returns a number above 0 and below 1.
    pub(crate) fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -ln(self.share()) * mean
    }

    pub(crate) fn time(&mut self, service: Service) -> f64 {
        match service {
            Service::Fixed(time) => time,
            Service::Exponential(mean) => self.exponential(mean),
            Service::Erlang(mean) => self.exponential(mean / 2.0) + self.exponential(mean / 2.0),
            Service::Bimodal { few, short, long } => {
                if self.share() < few {
                    long
                } else {
                    short
                }
            }
            Service::Pareto { mean, shape } => {
                let least = mean * (shape - 1.0) / shape;
                (least * exp(-ln(self.share()) / shape)).min(mean * 200.0)
            }
        }
    }
}
