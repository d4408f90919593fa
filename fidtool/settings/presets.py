"""Presets: the settings with which a published value was computed, and what else such a value
requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fidtool.errors import option
from fidtool.metrics.registry import METRIC_SETTINGS, select_metrics
from fidtool.names import fold, unknown_name_error
from fidtool.references.catalogue import TRAINING, VALIDATION


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How one project computes its published values.

    Attributes:
        name: value of ``--preset``.
        settings: settings by their names in `fidtool.settings.settings.Settings`, and metrics'
            settings by `fidtool.metrics.registry.setting_key`.
        optional: metrics that are left out with the reason if they cannot be computed.
        fakes: number of generated images; None if it is left to the paper.
        reference: the statistics or images of REAL.
        split: split of the dataset that REAL must be, `TRAINING` or `VALIDATION`; empty if papers
            use either, or if the datasets have no splits.
        prefix: prefix of the named references that are expected, such as ``adm``; empty if any REAL
            is.
        published: name of the `fidtool.references.published` values of REAL, if it is not that of a
            named reference.
        images_with_features: number of real images for precision and recall; None if it does not
            matter.
        crop: name of the crop of real images that are not stored in their final size; empty if
            there is none.
        further_crops: names of crops that it uses for some datasets, such as square images.
        further_networks: networks besides Inception for which it also reports values.
        classes: how the generated images are distributed over the classes.
        notes: what differs from the program, and what papers report in addition; one sentence each.
        source: file of the program that these facts are from.
        other_names: further values of ``--preset``, of projects that use the same program.
    """

    name: str
    about: str
    settings: Mapping[str, Any]
    optional: tuple[str, ...] = ()
    fakes: int | None = 50_000
    reference: str
    split: str = ""
    prefix: str = ""
    published: str = ""
    images_with_features: int | None = None
    crop: str = ""
    further_crops: tuple[str, ...] = ()
    further_networks: tuple[str, ...] = ()
    classes: str = ""
    notes: tuple[str, ...] = ()
    source: str
    other_names: tuple[str, ...] = ()

    @property
    def has_network(self) -> bool:
        """Whether its values need a network; those of pairs of images need none."""
        return "protocol" in self.settings


_ADM = Preset(
    name="adm",
    about="ADM's evaluator (guided-diffusion), also used for DiT, SiT, MAR, REPA and RAE",
    settings={
        "protocol": "tensorflow",
        "metrics": "fid,sfid,is,prdc",
        "is_split_size": 5000,
        "nearest_k": 3,
        "ties": "inclusive",
        "is_bias": False,
    },
    optional=("is",),
    reference="ADM's file for the dataset: its mean and covariance come from the whole training "
    "set, and its 10,000 images give precision and recall",
    split=TRAINING,
    prefix="adm",
    images_with_features=10_000,
    crop="adm",
    classes="labels drawn at random, or the same number of images per class",
    notes=(
        "ADM's evaluator prints precision and recall, but no density, coverage or F-score.",
        "ADM's evaluator compares distances in float16, which changes precision and recall a "
        "little; `fidtool guide papers` says by how much.",
        "If the file of samples has statistics, they are used, as in ADM's evaluator.",
    ),
    source="openai/guided-diffusion, evaluations/evaluator.py",
    other_names=("guided-diffusion", "dit", "sit", "mar", "repa", "rae"),
)


def _super_resolution(scale: int) -> Preset:
    """Return the preset of a scale, which is the border as well."""
    return Preset(
        name=f"sr-x{scale}",
        about=f"PSNR and SSIM for super-resolution by a factor of {scale}, as in RCAN, SwinIR and "
        "BasicSR",
        settings={
            "metrics": "psnr,ssim",
            "psnr_channel": "y",
            "psnr_border": scale,
            "ssim_channel": "y",
            "ssim_border": scale,
            "ssim_window": "gaussian-valid",
        },
        fakes=None,
        reference="the high-resolution images, with sides that are multiples of the scale",
        notes=(
            "The border that is left out is as wide as the scale, in pixels.",
            "Y is not rounded. Programs that convert bytes in MATLAB round it, and report a "
            "slightly lower PSNR.",
            "Grayscale images count as RGB, as in SwinIR and BasicSR. RCAN compares their grey "
            "levels.",
            "BasicSR reports values on RGB for DIV2K; they need `--psnr-channel rgb` and "
            "`--ssim-channel rgb`.",
        ),
        source="JingyunLiang/SwinIR, main_test_swinir.py and utils/util_calculate_psnr_ssim.py",
        other_names=(f"super-resolution-x{scale}",),
    )


# Tokenizers, for ImageNet at 256 x 256 pixels: pairs of a validation image and its reconstruction.
_RFID = Preset(
    name="rfid-llamagen",
    about="rFID, PSNR and SSIM of LlamaGen's tokenizer, with ADM's evaluator",
    settings={
        "protocol": "tensorflow",
        "metrics": "fid,psnr,ssim",
        "crop": "adm:256",
        "ssim_window": "uniform",
        "ssim_scale": "half",
    },
    reference="the 50,000 images of ImageNet's validation set",
    split=VALIDATION,
    published="imagenet256-val",
    crop="adm",
    notes=(
        "The SSIM uses pixel values in 0..1 with the constants for a range of 2, so it is higher "
        "than in other programs.",
        "Reconstructions are numbered in the order of the class folders: `--pairs sorted`.",
        "A pair of equal images has an infinite PSNR in LlamaGen, and 100 dB in fidtool.",
        "The program computes no LPIPS.",
    ),
    source="FoundationVision/LlamaGen, tokenizer/tokenizer_image/reconstruction_vq_ddp.py and "
    "tokenizer/validation/val_ddp.py",
)
_TOKENIZERS = (
    _RFID,
    replace(
        _RFID,
        name="rfid-rae",
        about="rFID, PSNR and SSIM of RAE, with torch-fidelity",
        settings={**_RFID.settings, "ssim_window": "gaussian", "ssim_scale": "unit"},
        notes=(
            "RAE truncates the floats of reconstructions, as `--float-to-byte floor` does.",
            "Reconstructions are numbered in the order of the class folders: `--pairs sorted`.",
            "The LPIPS in RAE's src/eval/ref_iqa.py uses VGG-16, as `--lpips-net vgg` does.",
        ),
        source="bytetriper/RAE, src/eval/fid.py, src/eval/ref_iqa.py and src/stage1_sample_ddp.py",
    ),
    replace(
        _RFID,
        name="rfid-vavae",
        about="rFID, PSNR, LPIPS and SSIM of VA-VAE, as in LightningDiT's evaluate_tokenizer.py",
        settings={
            "protocol": "pytorch-fid",
            "metrics": "fid,psnr,lpips,ssim",
            "crop": "tensor-center:256",
            "ssim_window": "gaussian",
            "ssim_scale": "signed",
            "lpips_net": "vgg",
        },
        crop="tensor-center",
        notes=(
            "The program computes LPIPS and SSIM on floats that were not rounded to bytes, which "
            "moved the SSIM of smooth reconstructions of photos by 0.001. It computes rFID and "
            "PSNR on PNG files.",
            "The SSIM uses pixel values in -1..1.",
            "The program averages LPIPS and SSIM over batches of 8 images, which only matters if "
            "the last batch is smaller.",
            "The program shuffles the images: pass its folders ref_images and decoded_images with "
            "`--pairs sorted`.",
        ),
        source="hustvl/LightningDiT, evaluate_tokenizer.py, tools/calculate_fid.py and "
        "models/lpips.py",
        other_names=("rfid-lightningdit",),
    ),
    replace(
        _RFID,
        name="rfid-titok",
        about="rFID and Inception Score of TiTok (1d-tokenizer), with torch-fidelity's network",
        settings={
            "protocol": "tensorflow",
            "metrics": "fid,is",
            "crop": "center-bicubic:256",
            "is_splits": 1,
            "is_bias": False,
        },
        optional=("is",),
        crop="center-bicubic",
        notes=(
            "The program runs Inception in float64.",
            "TiTok rounds the floats of reconstructions to bytes.",
            "TiTok's Inception Score is computed on all reconstructions at once, without splits.",
            "The program computes no PSNR, SSIM or LPIPS.",
        ),
        source="bytedance/1d-tokenizer, evaluator/evaluator.py, data/webdataset_reader.py and "
        "utils/train_utils.py",
        other_names=("rfid-1d-tokenizer",),
    ),
)
# Text-to-image on COCO, 30,000 captions.
_COCO = (
    Preset(
        name="coco-gigagan",
        about="FID-30k and CLIP score on COCO, as in GigaGAN's evaluation.py, which LlamaGen and "
        "DMD2 use too",
        settings={
            "protocol": "clean",
            "metrics": "fid,clip-score",
            "crop": "gigagan:256",
            "crop_fake": "gigagan:256",
            "clip_score_extractor": "clip:ViT-B-32-quickgelu",
            "clip_score_weight": 1.0,
            "clip_score_prefix": "A photo depicts",
        },
        fakes=30_000,
        reference="all 40,504 images of COCO 2014's validation set",
        split=VALIDATION,
        crop="gigagan",
        notes=(
            "The CLIP score is a mean cosine, such as 0.33. GigaGAN includes negative cosines as "
            "they are; fidtool counts them as 0.",
            "The CLIP score uses OpenAI's ViT-B/32 or, with an option of GigaGAN's program, "
            "OpenCLIP's ViT-g/14: `--clip-score-extractor "
            "clip:ViT-g-14@weights=laion2b_s12b_b42k`.",
            "GigaGAN truncates floats, so some bytes that CLIP gets are lower by 1 than here.",
            "Generated images are PNG files in natural order, with one caption per line.",
        ),
        source="mingukkang/GigaGAN, evaluation/evaluation.py and evaluation/data_util.py",
    ),
    Preset(
        name="coco-t2ibenchmark",
        about="FID-30k on COCO, as in text2image-benchmark",
        settings={
            "protocol": "pytorch-fid",
            "metrics": "fid",
            "crop": "t2ibenchmark:299",
            "crop_fake": "t2ibenchmark:299",
        },
        fakes=30_000,
        reference="text2image-benchmark's file for COCO 2014's validation set, "
        "t2ibenchmark:coco-30k",
        split=VALIDATION,
        prefix="t2ibenchmark",
        crop="t2ibenchmark",
        notes=(
            "The captions are in text2image-benchmark's file MS-COCO_val2014_30k_captions.csv.",
            "The CLIP score of text2image-benchmark is a mean cosine from OpenAI's ViT-B/32, "
            "without words before the captions and on images that are not cropped. It needs "
            "another run, with `--metrics clip-score --clip-score-extractor "
            "clip:ViT-B-32-quickgelu --clip-score-weight 1`.",
        ),
        source="boomb0om/text2image-benchmark, T2IBenchmark/pipelines.py, "
        "T2IBenchmark/utils/resizers.py and T2IBenchmark/feature_extractors",
    ),
)

PRESETS = {
    preset.name: preset
    for preset in (
        _ADM,
        replace(
            _ADM,
            name="var",
            about="ADM's evaluator as VAR uses it: FID, Inception Score, precision and recall",
            settings={**_ADM.settings, "metrics": "fid,is,prdc"},
            crop="var",
            further_crops=("adm",),
            classes="50 images per class of ImageNet, saved as PNG files",
            notes=(
                *_ADM.notes,
                "VAR's README does not say how floats become bytes; demo_sample.ipynb truncates "
                "them, as `--float-to-byte floor` does for arrays of floats.",
                "VAR's .npz has the images in the order of the folder's listing, on which the "
                "Inception Score depends.",
                "The crop is for the rFID of reconstructions against the validation set. ADM's "
                "file has ADM's crop.",
            ),
            source="FoundationVision/VAR, README.md, utils/misc.py and utils/data.py",
            other_names=(),
        ),
        Preset(
            name="edm",
            about="fid.py of EDM",
            settings={"protocol": "tensorflow", "metrics": "fid"},
            reference="EDM's file for the dataset",
            prefix="edm",
            crop="edm",
            further_crops=("resize",),
            classes="labels drawn at random",
            notes=(
                "EDM reports the minimum of three evaluations, with the seeds 0-49999, 50000-99999 "
                "and 100000-149999.",
            ),
            source="NVlabs/edm, fid.py",
        ),
        Preset(
            name="edm2",
            about="calculate_metrics.py of EDM2: FID and FD-DINOv2",
            settings={
                "extractor": "inception,dinov2@protocol=torch",
                "protocol": "tensorflow",
                "metrics": "fid",
            },
            reference="EDM2's file for the dataset",
            split=TRAINING,
            prefix="edm2",
            crop="adm",
            further_networks=("dinov2:vitl14",),
            classes="labels drawn at random",
            notes=(
                "EDM2 reports the minimum of three evaluations.",
                "DINOv2 is ViT-L/14; its weights take 1.2 GB. `--extractor inception` computes the "
                "FID alone.",
            ),
            source="NVlabs/edm2, calculate_metrics.py",
        ),
        Preset(
            name="fdr6",
            about="eval_all_fds.py of FD-Loss: six networks, for ImageNet at 256 x 256 pixels",
            settings={
                "protocol": "tensorflow",
                "extractor": "inception,fdr:convnext,fdr:dinov2,fdr:mae,fdr:siglip,fdr:clip",
                "metrics": "fdr,fid",
            },
            reference="FD-Loss's file for ImageNet, in which Inception's statistics are ADM's",
            split=TRAINING,
            prefix="fd-loss",
            crop="adm",
            further_networks=("fdr:convnext", "fdr:dinov2", "fdr:mae", "fdr:siglip", "fdr:clip"),
            classes="the same number of images per class",
            notes=(
                "The distances of the validation set are published with two decimals; the distance "
                "for MAE is 0.04.",
                "FD-Loss runs all networks but Inception in bfloat16, on floats that were not "
                "rounded to bytes.",
            ),
            source="cwhoaon/FD-Loss, eval_all_fds.py and scripts/ref/compute_valfd.py (arXiv "
            "2604.28190)",
            other_names=("fdr", "fd-loss"),
        ),
        Preset(
            name="stylegan",
            about="fid50k_full of StyleGAN2-ADA, StyleGAN3 and StyleGAN-XL",
            settings={"protocol": "stylegan", "metrics": "fid"},
            reference="all images of the dataset, as they are stored for training, or the "
            "program's own cache file",
            notes=(
                "The covariance is divided by n.",
                "Real images are not mirrored, even for networks that were trained with mirroring.",
            ),
            source="NVlabs/stylegan3, metrics/metric_main.py and metric_utils.py",
            other_names=("stylegan2-ada", "stylegan3", "stylegan-xl"),
        ),
        Preset(
            name="clean-fid",
            about="clean-fid 0.1.35 with mode='clean'",
            settings={"protocol": "clean", "metrics": "fid"},
            reference="clean-fid's file for the dataset",
            prefix="clean-fid",
            notes=(
                "clean-fid's KID needs the features of REAL, which clean-fid's files for KID have.",
            ),
            source="GaParmar/clean-fid, cleanfid/fid.py",
        ),
        Preset(
            name="pytorch-fid",
            about="pytorch-fid 0.3.0",
            settings={"protocol": "pytorch-fid", "metrics": "fid"},
            fakes=None,
            reference="the real images that the paper names",
            source="mseitzer/pytorch-fid, src/pytorch_fid/fid_score.py",
        ),
        Preset(
            name="torch-fidelity",
            about="torch-fidelity 0.4.0",
            settings={"protocol": "tensorflow", "metrics": "fid,kid,is"},
            optional=("is",),
            fakes=None,
            reference="the real images that the paper names",
            notes=(
                "torch-fidelity draws other subsets for KID and orders the images differently for "
                "the Inception Score, so the last digits of both differ.",
            ),
            source="toshas/torch-fidelity, torch_fidelity/metrics.py",
        ),
        *map(_super_resolution, (2, 3, 4, 8)),
        *_TOKENIZERS,
        *_COCO,
    )
}
"""The presets by name."""


def find_preset(name: str) -> Preset:
    """Return the preset with this name, or with one of its other names; case, hyphens and
    underscores do not matter.
    """
    spellings = []
    for preset in PRESETS.values():
        for spelling in (preset.name, *preset.other_names):
            if fold(spelling) == fold(name):
                return preset
            spellings.append(spelling)
    raise unknown_name_error("preset", name, spellings, ", ".join(PRESETS), "preset")


def apply_preset(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of `fidtool.settings.settings.Settings`, completed by those of the preset
    among them.

    Args:
        layers: settings, of which those in a later mapping override the others, and all override
            the preset. They can have settings of metrics, by
            `fidtool.metrics.registry.setting_key`; in the last one, only of those in ``metrics``.
    """
    merged = dict[str, Any]()
    for layer in layers:
        merged |= layer
    option_of = dict[str, str]()
    if isinstance(merged.get("preset"), str):
        preset = find_preset(merged["preset"])
        layers = (preset.settings, *layers)
        if "metrics" not in merged:
            option_of = dict.fromkeys(preset.optional, option("preset", preset.name))
    merged = {}
    for layer in layers:
        for key in layer:
            if key in METRIC_SETTINGS:
                _, setting = METRIC_SETTINGS[key]
                merged.pop(setting.excludes, None)
        merged |= layer
    of_metrics = {key: merged.pop(key) for key in [*merged] if key in METRIC_SETTINGS}
    needed = [key for key in of_metrics if key in layers[-1]]
    metrics = select_metrics(merged.get("metrics", "fid"), of_metrics, needed)
    metrics = tuple(
        asked._replace(optional=option_of.get(asked.metric.name, asked.optional))
        for asked in metrics
    )
    return merged | {"metrics": metrics}
